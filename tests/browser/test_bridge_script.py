"""The bridge's script alone, in a page without Jupyter: what it does where a notebook does not behave."""

from __future__ import annotations

from typing import Any

import pytest

from jaxleak_magic.show.live import packed_script, script

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]

# A page with a report and a made-up notebook; `window.sent` is what the kernel would get.
SETUP = """async (source) => {
  document.body.innerHTML = '<div data-jaxleak="uid1"><p data-jaxleak-fix="1">Take it with %leakfix 1</p></div>';
  class Cell {
    constructor(id, text) { Object.assign(this, { id, text, writes: 0, outputs: id === "b" ? ["uid1"] : [] }); }
    getId() { return this.id; }
    getSource() { return this.text; }
    setSource(text) { if (this.broken) throw new Error("read-only"); this.text = text; this.writes += 1; }
    getOutputs() { return this.outputs; }
  }
  window.cells = [new Cell("a", "old a"), new Cell("b", "old b"), new Cell("c", "old b")];
  window.sent = [];
  const state = {
    uid: "uid1", own_id: "m", nodes: [], applied: [],
    fixes: [{ number: 1, applicable: true, edits: [
      { title: "In [1]", cell_id: "a", old: "old a", new: "new a" },
      { title: "In [2]", cell_id: "b", old: "old b", new: "new b" }] }],
  };
  window.context = { model: { sharedModel: { get cells() { return window.cells; } } } };
  const model = () => ({
    get: (name) => state[name], set: (name, value) => { state[name] = value; }, save_changes: () => {},
    send: (message) => window.sent.push(message),
    widget_manager: {
      get_model: async () => { await window.delay; return { widget_manager: { context: window.context } }; },
    },
  });
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  window.module = (await import(url)).default;
  window.start = () => window.module.initialize({ model: model() });
  window.close = window.start();
}"""
TEXTS = "window.cells.map((cell) => cell.text)"


@pytest.fixture
def page(browser: Any) -> Any:
    page = browser.new_page()
    page.set_default_timeout(30_000)
    page.goto("about:blank")
    page.evaluate(SETUP, packed_script("bridge.js"))
    page.get_by_role("button", name="Apply to cells").wait_for()
    yield page
    page.close()


def _said(page: Any, text: str) -> None:
    page.get_by_role("status").get_by_text(text).wait_for()


def test_all_cells_are_changed_and_taken_back(page: Any) -> None:
    page.get_by_role("button", name="Apply to cells").click()
    _said(page, "Applied.")
    assert page.evaluate(TEXTS) == ["new a", "new b", "old b"]
    assert page.evaluate("window.sent") == [{"kind": "apply", "fix": 1, "ok": True, "reason": None}]
    page.get_by_role("button", name="Undo").click()
    _said(page, "Taken back.")
    assert page.evaluate(TEXTS) == ["old a", "old b", "old b"]


def test_no_answer_within_a_second_changes_nothing_also_later(page: Any) -> None:
    page.evaluate("() => { window.delay = new Promise((resolve) => { window.release = resolve; }); }")
    page.get_by_role("button", name="Apply to cells").click()
    _said(page, "No answer from the notebook. Use %leakfix 1.")
    page.evaluate("window.release()")
    page.wait_for_timeout(200)
    assert page.evaluate(TEXTS) == ["old a", "old b", "old b"]
    assert page.evaluate("window.sent[0].reason") == "silent"


@pytest.mark.parametrize(
    ("harm", "words", "texts"),
    [
        ("window.cells[1].text += '#'", "a cell was edited since", ["old a", "old b#", "old b"]),
        ("window.cells[1].broken = true", "refused the change", ["old a", "old b", "old b"]),
        ("window.cells.shift()", "was not found here", ["old b", "old b"]),
        ("window.context = undefined", "was not found here", ["old a", "old b", "old b"]),
        ("window.second = window.start()", "was not found here", ["old a", "old b", "old b"]),
    ],
    ids=["edited", "read-only", "cell gone", "no notebook", "two notebooks show it"],
)
def test_a_fix_changes_every_cell_or_none(page: Any, harm: str, words: str, texts: list[str]) -> None:
    page.evaluate(f"() => {{ {harm}; }}")  # not as an expression: a function that it gives would be called
    page.wait_for_timeout(200)
    page.get_by_role("button", name="Apply to cells").first.click()
    _said(page, words)
    assert page.evaluate(TEXTS) == texts


def test_a_closed_bridge_leaves_the_report_as_it_was(page: Any) -> None:
    page.evaluate("window.close()")
    assert page.get_by_role("button").count() == 0
    assert page.locator("[data-jaxleak-fix]").inner_text() == "Take it with %leakfix 1"


def test_a_run_that_does_not_come_about_is_said(page: Any) -> None:
    page.get_by_role("button", name="Apply to cells").click()
    page.get_by_role("button", name="Run again").click()
    _said(page, "Not run: please run the changed cells yourself.")


def test_the_script_needs_nothing_but_the_page() -> None:
    for word in ("import ", "fetch(", "http:", "https:", "innerHTML", "eval("):
        assert word not in script("bridge.js")
