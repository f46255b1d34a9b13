// Brings a static report to life: Apply, Copy and Undo in the placeholders of every output with this uid.
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

// Whether the report is an output of this notebook: another one on the same kernel has a bridge of its own.
const holds = (cells, uid) =>
  cells.some((cell) => {
    try {
      return JSON.stringify(cell.getOutputs?.() ?? []).includes(uid);
    } catch {
      return false;
    }
  });

const REASONS = {
  unreachable: (n) => `The cell was not found here. Use %leakfix ${n}.`,
  edited: (n) => `Not applied: a cell was edited since. Use %leakfix ${n}.`,
  failed: (n) => `The notebook refused the change. Use %leakfix ${n}.`,
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

// uid -> the bridges whose notebook shows it. More than one (a notebook copied with its outputs): nobody acts.
const claims = (globalThis.__jaxleakClaims ??= new Map());

export default {
  initialize({ model, signal }) {
    const uid = model.get("uid");
    const dressed = new Map();
    let scheduled = false;
    let closed = false;

    const isApplied = (n) => model.get("applied").includes(n);

    const act = async (fix, undo) => {
      const [from, to] = undo ? ["new", "old"] : ["old", "new"];
      const several = (claims.get(uid)?.size ?? 0) > 1;
      const reason = several ? "unreachable" : replaceAll(await cellsOf(model), fix.edits, from, to);
      if (!reason) {
        const rest = model.get("applied").filter((n) => n !== fix.number);
        model.set("applied", undo ? rest : [...rest, fix.number]);
        model.save_changes();
      }
      model.send({ kind: undo ? "undo" : "apply", fix: fix.number, ok: !reason, reason });
      return reason;
    };

    const dress = (slot) => {
      const fix = model.get("fixes").find(({ number }) => String(number) === slot.dataset.jaxleakFix);
      if (!fix) return;
      const hint = [...slot.childNodes];
      const status = makeStatus();
      const say = (text) => (status.textContent = text);
      const click = (undo) => async () => {
        const reason = await act(fix, undo);
        redraw();
        say(reason ? REASONS[reason](fix.number) : undo ? "Taken back." : "Applied. Run the cell again to check it.");
        slot.querySelector("button")?.focus();
      };
      const redraw = () => {
        const buttons = [];
        if (fix.applicable && isApplied(fix.number)) buttons.push(makeButton("Undo", click(true)));
        else if (fix.applicable) buttons.push(makeButton(fix.edits.length > 1 ? "Apply to cells" : "Apply to cell", click(false), "go"));
        slot.replaceChildren(...buttons, ...copyButtons(fix.edits, say), status);
      };
      redraw();
      if (isApplied(fix.number)) say("Applied. Run the cell again to check it.");
      dressed.set(slot, () => slot.replaceChildren(...hint));
    };

    const arm = async () => {
      scheduled = false;
      for (const slot of [...dressed.keys()]) if (!slot.isConnected) dressed.delete(slot);
      const slots = [...document.querySelectorAll(`[data-jaxleak="${uid}"] [data-jaxleak-fix]`)];
      if (closed || slots.every((slot) => dressed.has(slot))) return;
      if (!holds(await cellsOf(model), uid) || closed) return;
      if (!claims.has(uid)) claims.set(uid, new Set());
      claims.get(uid).add(model);
      for (const slot of slots) if (slot.isConnected && !dressed.has(slot)) dress(slot);
    };

    const schedule = () => {
      if (!scheduled && !closed) {
        scheduled = true;
        requestAnimationFrame(arm);
      }
    };

    const observer = new MutationObserver(schedule);
    observer.observe(document.body, { childList: true, subtree: true });
    schedule();

    const close = () => {
      closed = true;
      observer.disconnect();
      claims.get(uid)?.delete(model);
      for (const restore of dressed.values()) restore();
      dressed.clear();
    };
    signal?.addEventListener("abort", close);
    return close;
  },
};
