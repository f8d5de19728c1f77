"""Files that are written: whole or not at all, through links, and into pipes and devices, which stay what they are."""

import os
import subprocess
import sys
import threading

import pytest

import howsmooth as hs
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


@pytest.mark.parametrize("to_file", [True, False])
def test_the_standard_output_is_written_into(tmp_path, to_file):
    code = "from pathlib import Path; from howsmooth.files import whole\n"
    code += "print('before', flush=True)\nwith whole(Path('/dev/stdout')) as partial: partial.write_text('new')"
    with (tmp_path / "out").open("ab") as file:
        done = subprocess.run([sys.executable, "-c", code], stdout=file if to_file else subprocess.PIPE, check=True)
    assert ((tmp_path / "out").read_bytes() if to_file else done.stdout) == b"before\nnew"
    assert os.path.islink("/dev/stdout")


def test_nothing_is_left_of_what_went_wrong(tmp_path):
    target = tmp_path / "page.html"
    target.write_text("old", encoding="utf-8")
    with pytest.raises(TypeError, match="data must be str"):
        write(target, None)
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_hyphen_is_no_file(tmp_path):
    with pytest.raises(hs.errors.FileError, match="name /dev/stdout"):
        write(tmp_path / "-")
