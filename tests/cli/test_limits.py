"""What is too large, too deep or too long ends in one sentence and exit code 2, and never in a traceback."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from howsmooth.cli.app import main
from howsmooth.files import available_memory

DIGITS = "9" * 5000
NUMBER = "9" * 1000


@pytest.fixture
def line(howsmooth):
    """One head on the line, in a file of the current folder."""
    np.savez("line.npz", A=-np.eye(1))
    return "line.npz"


TOO_LARGE = {
    "bounds line.npz -r 1 -n 10000000000000": "n = 10¹³ tokens takes at least",
    "worst-case line.npz -r 1 -n 10000000000000": "n = 10¹³ tokens takes at least",
    f"bounds line.npz -r 1 -n {NUMBER}": "n must be at most 10^300",
    f"bounds line.npz -r 1 -n {DIGITS}": "'--n'",
    "regimes line.npz -r 2 --lengths 1000000000000000000000": "--lengths must be at most 2^53",
    f"regimes line.npz -r 2 --lengths {DIGITS}": "--lengths takes whole numbers",
    "worst-case line.npz -r 1 -n 3 --seed 1e30": "'--seed'",
    f"worst-case line.npz -r 1 -n 3 --seed {10**30}": "--seed must be between 0 and 2^63 - 1",
    f"worst-case line.npz -r 1 -n 3 --seed {DIGITS}": "'--seed'",
    "split --map-1d A=-1 --step 1e-9": "a grid with --span 6 and --step 10⁻⁹ takes at least",
    "split --map-1d A=-1 --step 5e-324": "takes at least",
    "split --map-1d A=-1 --span 1e308": "leave the range of floats",
    "split --map-1d A=1e308": "leave the range of floats",
    "split --map-1d A=nan": "--map-1d needs numbers as in A=-1,V=1, got 'A=nan'",
    "split --map-1d A=1,V=1e308": "leave the range of floats",
    f"split --map-1d A={DIGITS}": "leave the range of floats",
    "split line.npz --measure deep.json": "'deep.json' cannot be read as a measure",
    "split line.npz --measure digits.json": "a measure in JSON is",
    "split line.npz --measure number.json": "'number.json' cannot be read as a measure",
    "bounds unpacks.npz -n 3 -r 1": "'unpacks.npz', unpacked, takes at least 262,144 GiB",
    "bounds lies.npz -n 3 -r 1": "does not fit into memory, or is damaged",
}


def hostile_files():
    with open("deep.json", "w", encoding="utf-8") as file:
        file.write('{"points": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with open("digits.json", "w", encoding="utf-8") as file:
        file.write(f'{{"points": [[{DIGITS}]]}}')
    with open("number.json", "w", encoding="utf-8") as file:
        json.dump({"points": [[10**1000]]}, file)
    np.save("lies.npy", np.eye(2))
    with open("lies.npy", "rb") as file:
        whole = file.read()
    # the header is padded with blanks, so that another shape fits into its place
    lying = whole.replace(b"(2, 2), }" + b" " * 14, b"(1000000, 1000000), }".ljust(23))
    assert len(lying) == len(whole)
    assert lying != whole
    with zipfile.ZipFile("lies.npz", "w") as archive:
        archive.writestr("A.npy", lying)
    with zipfile.ZipFile("unpacks.npz", "w") as archive:
        archive.writestr("A.npy", whole)
        archive.filelist[0].file_size = 2**46  # what the directory will say


@pytest.mark.parametrize("arguments", TOO_LARGE, ids=lambda text: text[:60])
def test_what_is_too_large_is_refused_in_one_sentence(arguments, howsmooth, line):
    hostile_files()
    result = howsmooth(*arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("howsmooth: ")
    assert result.err.count("\n") == 1
    assert len(result.err) < 700
    assert TOO_LARGE[arguments] in result.err


def test_the_longest_length_that_is_taken_has_an_answer(howsmooth, line):
    result = howsmooth("regimes", line, "-r", "2", "--lengths", str(2**53), "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["rows"][0]["n"] == 2**53


def fails_with(error):
    """Return a command that fails in the middle of its work."""

    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 2, "does not fit into the memory of this machine; ask"),
        (MemoryError("Unable to allocate 7.28 TiB for an array"), 2, "(7.28 TiB were asked for)"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            2,
            "8 b",
        ),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
        (OverflowError("int too large to convert to float"), 2, "too large to compute with"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, BaseException) else "",
)
def test_the_outermost_handler_says_what_was_too_large(error, code, said, monkeypatch, capsys):
    monkeypatch.setattr("howsmooth.cli.first_steps.models", fails_with(error))
    monkeypatch.setattr(sys, "argv", ["howsmooth", "models"])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert stop.value.code == code
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == (code == 2)


def test_an_error_of_the_code_itself_is_not_hidden(monkeypatch, capsys):
    monkeypatch.setattr("howsmooth.cli.first_steps.models", fails_with(RuntimeError("shapes do not match")))
    monkeypatch.setattr(sys, "argv", ["howsmooth", "models"])
    with pytest.raises(SystemExit, match="70"):
        main()
    assert "RuntimeError: shapes do not match" in capsys.readouterr().err


def test_the_memory_of_this_machine_is_known():
    there = available_memory()
    assert there is not None
    assert 2**20 < there < 2**50


# One process for all of them: a new one for each would spend most of its time on starting.
WATCH = """
import json, sys
from howsmooth.cli.app import main
torch = {}
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["howsmooth", *arguments]
    try:
        main()
    except SystemExit as stop:
        torch[" ".join(arguments)] = [stop.code or 0, "torch" in sys.modules]
print("\\n" + json.dumps(torch))
"""
REFUSED = [
    "bounds line.npz -n 0 -r 1",
    "bounds line.npz -n 3 -r -1",
    "bounds missing.npz -n 3 -r 1",
    "bounds line.pt -n 3 -r 1",
    "bounds line.npz -n 3 -r 1 --save witness.npy",
    "bounds no/such/model --layer 0 -n 3 -r 1",
    "bounds minilm --layer 0 --map hats -n 3 -r 1",
    "bounds -n 3 -r 1",
    "worst-case line.npz -n 3 -r 1 --steps 3",
    "worst-case line.npz -n 3 -r 1 --seed -1",
    "worst-case line.npz -n 10000000000000 -r 1",
    "split --map-1d B=1",
    "split --map-1d A=1 --figure x.bmp",
    "split line.npz --measure x.txt --eps 0",
    "regimes line.npz -r 2 --lengths 1",
]
SHOWN = ["--help", "--version", "bounds --help", "worst-case --help", "models"]


@pytest.mark.slow
def test_a_mistake_is_told_and_help_is_shown_before_torch_is_imported(howsmooth, line):
    calls = [call.split() for call in (*SHOWN, *REFUSED)]
    done = subprocess.run(
        [sys.executable, "-c", WATCH, json.dumps(calls)], capture_output=True, text=True, check=True, timeout=240
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {call: [0, False] for call in SHOWN} | {call: [2, False] for call in REFUSED}
    assert done.stderr.count("\n") == len(REFUSED)


@pytest.mark.slow
def test_a_reader_who_leaves_early_and_a_terminal_without_mathematical_signs_see_no_traceback():
    command = f"PYTHONIOENCODING=ascii {sys.executable} -m howsmooth bounds --help"
    result = subprocess.run(command, shell=True, capture_output=True, encoding="utf-8", check=False, timeout=240)
    assert result.returncode == 0
    # click takes a terminal of ASCII for one that is set up wrongly, and writes UTF-8
    assert "1/√k" in result.stdout or "1/?k" in result.stdout
    result = subprocess.run(
        f"{command} | head -c 1", shell=True, capture_output=True, text=True, check=False, timeout=240
    )
    assert "Traceback" not in result.stderr
