// Brings a static report to life: the buttons of its fixes, its graph, and arrow keys in its list of leaks.
// It is never displayed itself, so nothing of it is saved; without a live kernel the report stays as it is.

// JupyterLab and Notebook only. Nothing here is promised by them, so every step is tested for.
const cellsOf = async (model) => {
  try {
    let manager = model.widget_manager;
    if (!manager?.context) manager = (await manager?.get_model?.(model.get("own_id")))?.widget_manager;
    return [...(manager?.context?.model?.sharedModel?.cells ?? [])];
  } catch {
    return [];
  }
};

// Whether the report is an output of this cell: another notebook on the same kernel has a bridge of its own.
const holds = (cell, uid) => {
  try {
    return JSON.stringify(cell.getOutputs?.() ?? []).includes(uid);
  } catch {
    return false;
  }
};

const ANSWER_MS = 1000;

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const REASONS = {
  silent: "No answer from the notebook.",
  unreachable: "The cell was not found here.",
  edited: "Not applied: a cell was edited since.",
  failed: "The notebook refused the change.",
};

// Replace the texts of all cells of a fix, or of none. `from` and `to` are "old" and "new", or the other way for Undo.
const replaceAll = (cells, edits, from, to) => {
  const found = edits.map((edit) => cells.find((cell) => cell.getId?.() === edit.cell_id));
  if (found.some((cell) => !cell)) return "unreachable";
  if (edits.some((edit, i) => found[i].getSource() !== edit[from])) return "edited";
  const done = [];
  try {
    edits.forEach((edit, i) => {
      found[i].setSource(edit[to]);
      done.push(i);
    });
    return null;
  } catch {
    for (const i of done) found[i].setSource(edits[i][from]);
    return "failed";
  }
};

// Run the changed cells and the report's own, from top to bottom, as the user's own key does: each gets the focus, and
// the front end is asked for its command by the attribute that it listens to in outputs that it trusts, as it does one
// that was made in this session. False where a cell is not on the page.
const runAll = (cells, edits, uid, report) => {
  const home = report.closest(".jp-Cell");
  const shown = [...(home?.closest(".jp-Notebook")?.querySelectorAll(".jp-Cell") ?? [])];
  if (shown.length !== cells.length) return false;
  const wanted = shown.filter((_, i) => edits.some((edit) => edit.cell_id === cells[i].getId()) || holds(cells[i], uid));
  if (!wanted.includes(home)) return false;
  for (const cell of wanted) {
    cell.querySelector(".cm-content")?.focus();
    const run = make("i", "", { "data-commandlinker-command": "notebook:run-cell", "data-commandlinker-args": "{}" });
    report.append(run);
    run.click();
    run.remove();
  }
  return true;
};

// uid -> the bridges whose notebook shows it. More than one (a notebook copied with its outputs): nobody acts.
const claims = (globalThis.__jaxleakClaims ??= new Map());

export default {
  initialize({ model, signal }) {
    const uid = model.get("uid");
    // A part of the report -> what stands there now, and what takes it back.
    const dressed = new Map();
    // What an update of the output must not lose: which parts are open, what was said, and which fix had the focus.
    const opened = new Map();
    const said = new Map();
    let focused = null;
    let scheduled = false;
    let closed = false;

    const root = `[data-jaxleak="${uid}"]`;
    const isApplied = (n) => model.get("applied").includes(n);

    const act = async (fix, undo) => {
      const [from, to] = undo ? ["new", "old"] : ["old", "new"];
      const several = (claims.get(uid)?.size ?? 0) > 1;
      const cells = await Promise.race([cellsOf(model), wait(ANSWER_MS)]);
      const reason = !cells ? "silent" : several ? "unreachable" : replaceAll(cells, fix.edits, from, to);
      if (!reason) {
        const rest = model.get("applied").filter((n) => n !== fix.number);
        model.set("applied", undo ? rest : [...rest, fix.number]);
        model.save_changes();
      }
      model.send({ kind: undo ? "undo" : "apply", fix: fix.number, ok: !reason, reason });
      return reason;
    };

    const dressFix = (slot) => {
      const fix = model.get("fixes").find(({ number }) => String(number) === slot.dataset.jaxleakFix);
      if (!fix) return [slot, () => {}];
      const hint = [...slot.childNodes];
      const status = makeStatus();
      const say = (text) => {
        said.set(fix.number, text);
        status.textContent = text;
      };
      const click = (undo) => async () => {
        focused = slot.dataset.jaxleakFix;
        const reason = await act(fix, undo);
        redraw();
        say(reason ? `${REASONS[reason]} Use %leakfix ${fix.number}.` : undo ? "Taken back." : "Applied.");
        slot.querySelector("button")?.focus();
      };
      const rerun = async () => {
        const home = slot.closest(".jp-Cell");
        const asked = runAll(await cellsOf(model), fix.edits, uid, slot.closest(root));
        if (asked) await wait(ANSWER_MS);
        const runs = !slot.isConnected || home?.querySelector(".jp-InputPrompt")?.textContent.includes("*");
        if (!asked || !runs) say("Not run: please run the changed cells yourself.");
      };
      const redraw = () => {
        const buttons = [];
        if (fix.applicable && isApplied(fix.number)) buttons.push(makeButton("Run again", rerun, "go"), makeButton("Undo", click(true)));
        else if (fix.applicable) buttons.push(makeButton(fix.edits.length > 1 ? "Apply to cells" : "Apply to cell", click(false), "go"));
        slot.replaceChildren(...buttons, ...copyButtons(fix.edits, say), status);
      };
      redraw();
      status.textContent = said.get(fix.number) ?? (isApplied(fix.number) ? "Applied." : "");
      if (focused === slot.dataset.jaxleakFix && document.activeElement === document.body) slot.querySelector("button")?.focus();
      return [slot, () => slot.replaceChildren(...hint)];
    };

    const dressDetails = (details) => {
      const title = (element) => element?.querySelector("summary")?.textContent;
      const key = title(details.closest(".leak")) + title(details);
      if (opened.has(key)) details.open = opened.get(key);
      details.addEventListener("toggle", () => opened.set(key, details.open));
      return [details, () => {}];
    };

    const dress = (part) => {
      if (part.matches("img")) return livePicture(part, model.get("nodes"));
      return part.matches("details") ? dressDetails(part) : dressFix(part);
    };

    const arm = async () => {
      scheduled = false;
      for (const [part, [shown]] of [...dressed]) if (!shown.isConnected) dressed.delete(part);
      const parts = [...document.querySelectorAll(`${root} :is([data-jaxleak-fix], .pic img, details)`)];
      if (closed || parts.every((part) => dressed.has(part))) return;
      if (!(await cellsOf(model)).some((cell) => holds(cell, uid)) || closed) return;
      if (!claims.has(uid)) claims.set(uid, new Set());
      claims.get(uid).add(model);
      for (const part of parts) if (part.isConnected && !dressed.has(part)) dressed.set(part, dress(part));
    };

    const schedule = () => {
      if (!scheduled && !closed) {
        scheduled = true;
        requestAnimationFrame(arm);
      }
    };

    const observer = new MutationObserver(schedule);
    observer.observe(document.body, { childList: true, subtree: true });
    const deafen = listenToKeys(root);
    schedule();

    const close = () => {
      closed = true;
      observer.disconnect();
      deafen();
      claims.get(uid)?.delete(model);
      for (const [, restore] of dressed.values()) restore();
      dressed.clear();
    };
    signal?.addEventListener("abort", close);
    return close;
  },
};
