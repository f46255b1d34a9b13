"""``jaxleak fix`` on real files: what it shows, what it writes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import stat

import pytest

from tests.doors.leaking import CLEAN, LEAKS, MENDABLE, notebook
from tests.doors.test_command_line import check_json, jaxleak, write


def test_diff_changes_nothing(tmp_path):
    path = write(tmp_path / "cell.py", MENDABLE)
    for words in ([], ["--diff"]):
        run = jaxleak("fix", path, *words)
        assert run.returncode == 0, run.stderr
        assert "+    return Learner(jax.tree_util.Partial(schedule, rate))" in run.stdout
        assert path.read_text() == MENDABLE


def test_write_mends_the_script(tmp_path):
    path = write(tmp_path / "cell.py", MENDABLE)
    path.chmod(0o750)
    run = jaxleak("fix", path, "--write")
    assert run.returncode == 0, run.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    check, report = check_json(path)
    assert (check.returncode, report["outcome"]) == (0, "clean")
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("first", "encoding"), [("%%leakcheck -o r", "utf-8"), ("# -*- coding: latin-1 -*-\n# é", "latin-1")]
)
def test_write_keeps_first_line_encoding_and_line_endings(tmp_path, first, encoding):
    text = f"{first}\n{MENDABLE}"
    path = write(tmp_path / "cell.py", text.replace("\n", "\r\n").encode(encoding))
    run = jaxleak("fix", path, "--write")
    assert run.returncode == 0, run.stderr
    data = path.read_bytes()
    assert data.splitlines()[0] == text.splitlines()[0].encode(encoding)
    assert data.count(b"\n") == data.count(b"\r\n")
    assert "Partial" in data.decode(encoding)


def test_write_through_a_link_keeps_the_link(tmp_path):
    path = write(tmp_path / "cell.py", MENDABLE)
    link = tmp_path / "link.py"
    link.symlink_to(path)
    assert jaxleak("fix", link, "--write").returncode == 0
    assert link.is_symlink()
    assert "Partial" in path.read_text()


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path):
    text = MENDABLE + "\nwith open(__file__, 'a') as file:\n    file.write('# edited\\n')\n"
    path = write(tmp_path / "cell.py", text)
    run = jaxleak("fix", path, "--write")
    assert run.returncode == 3
    assert "edited while it was checked" in run.stderr
    assert path.read_text() == text + "# edited\n"


def test_notebook_keeps_everything_else(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "%load_ext jaxleak_magic\n", "%%leakcheck\n" + MENDABLE, "'é'")
    data = json.loads(path.read_text())
    data["cells"].insert(1, {"cell_type": "markdown", "id": "words", "metadata": {}, "source": ["# Ü\n", "text"]})
    data["cells"][2]["source"] = data["cells"][2]["source"].splitlines(keepends=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    run = jaxleak("fix", path, "--write")
    assert run.returncode == 0, run.stderr
    after = json.loads(path.read_text())
    mended = after["cells"][2].pop("source")
    original = data["cells"][2].pop("source")
    assert after == data
    assert mended[0] == original[0] == "%%leakcheck\n"
    assert "Partial" in "".join(mended)
    assert path.read_text().startswith('{\n "cells"')
    check, reports = check_json(path)
    assert check.returncode == 0, check.stderr
    assert [report["outcome"] for report in reports] == ["clean"]


def test_the_cell_that_defines_is_mended_not_the_one_that_calls(tmp_path):
    defining, calling = MENDABLE.rsplit("\n\n\n", 1)
    path = notebook(tmp_path / "n.ipynb", defining, "1", f"%%leakcheck\n{calling}")
    run = jaxleak("fix", path, "--write")
    assert run.returncode == 0, run.stderr
    cells = json.loads(path.read_text())["cells"]
    assert "Partial" in cells[0]["source"]
    assert cells[2]["source"] == f"%%leakcheck\n{calling}"


def test_without_a_leak_or_a_fix_there_is_a_reason(tmp_path):
    run = jaxleak("fix", write(tmp_path / "clean.py", CLEAN), "--write")
    assert (run.returncode, run.stdout) == (1, "")
    assert "no leak was found" in run.stderr
    run = jaxleak("fix", write(tmp_path / "leaks.py", MENDABLE), "--leak", "7")
    assert run.returncode == 1
    assert "there is no leak 7" in run.stderr


def test_a_leak_without_a_fix_says_why(tmp_path):
    path = write(tmp_path / "cell.py", f"exec({LEAKS!r})\n")
    run = jaxleak("fix", path, "--write")
    assert run.returncode == 1
    assert "no fix is offered" in run.stderr
    assert path.read_text() == f"exec({LEAKS!r})\n"


def test_a_folder_that_cannot_be_written(tmp_path):
    path = write(tmp_path / "cell.py", MENDABLE)
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    try:
        run = jaxleak("fix", path, "--write")
    finally:
        tmp_path.chmod(0o700)
    assert run.returncode == 3
    assert "nothing was changed" in run.stderr
