"""Files that are written: whole or not at all, through links, and into pipes and devices, which stay what they are."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from howsmooth.files import whole


def write(target, text="new"):
    with whole(target) as partial:
        partial.touch()
        partial.write_text(text, encoding="utf-8")


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "page.html", tmp_path / "page.html"
    file.write_text("old", encoding="utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    write(link)
    assert link.is_symlink()
    assert file.read_text(encoding="utf-8") == "new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in file.parent.iterdir()) == ["page.html"]


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    write(pipe)
    reader.join(timeout=10)
    assert read == ["new"]
    assert pipe.is_fifo()


PRINTING = """
import os, sys
from pathlib import Path
from howsmooth.files import whole
os.chdir(sys.argv[1])
Path("link").symlink_to("/dev/stdout")
print("before")
for name in ("-", "/dev/stdout", "/proc/self/fd/1", "link"):
    with whole(Path(name)) as partial:
        partial.write_text(f"{name}\\n")
    print("after")
"""
WITHIN = "before\n" + "".join(f"{name}\nafter\n" for name in ("-", "/dev/stdout", "/proc/self/fd/1", "link"))


@pytest.mark.skipif(not os.path.islink("/dev/stdout"), reason="standard output has no name here")
@pytest.mark.parametrize("where", ["a file", "a file that is appended to", "a pipe"])
def test_standard_output_is_written_into_by_every_name(tmp_path, where):
    with (tmp_path / "out").open("ab" if "appended" in where else "wb") as file:
        to = subprocess.PIPE if where == "a pipe" else file
        done = subprocess.run([sys.executable, "-c", PRINTING, str(tmp_path)], stdout=to, check=True)
    found = (tmp_path / "out").read_bytes() if done.stdout is None else done.stdout
    assert found.decode() == WITHIN
    assert os.path.islink("/dev/stdout")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "link"}
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no folder among devices here")
def test_an_ordinary_file_among_devices_is_replaced():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for text in ("the first one", "new"):
            write(Path(folder) / "table.csv", text)
        assert (Path(folder) / "table.csv").read_text(encoding="utf-8") == "new"
        assert len(list(Path(folder).iterdir())) == 1


def test_a_device_is_written_into_and_stays_one():
    before = os.stat(os.devnull)
    write(Path(os.devnull))
    assert os.path.samestat(before, os.stat(os.devnull))


def test_nothing_is_left_of_what_went_wrong(tmp_path):
    target = tmp_path / "page.html"
    target.write_text("old", encoding="utf-8")
    with pytest.raises(TypeError, match="data must be str"):
        write(target, None)
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def run_command(*words, **options):
    return subprocess.run([sys.executable, "-m", "howsmooth", *words], capture_output=True, check=False, **options)


def test_a_command_prints_a_text_and_nothing_else_where_a_hyphen_names_the_file(tmp_path):
    from howsmooth.lab.page import page

    for name in ("-", "/dev/stdout"):
        done = run_command("lab", "-o", name, cwd=tmp_path)
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, page(), b"")
    assert list(tmp_path.iterdir()) == []
    done = run_command("measure", "-o", "-", cwd=tmp_path)
    assert done.returncode == 2
    assert b"--out must name a folder, got standard output" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []
