// The report as a widget: the same static HTML, made and escaped by the kernel, with buttons that copy a fix.

export default {
  render({ model, el }) {
    const draw = () => {
      el.innerHTML = model.get("html");
      const fixes = model.get("fixes");
      for (const slot of el.querySelectorAll("[data-jaxleak-fix]")) {
        const fix = fixes.find(({ number }) => String(number) === slot.dataset.jaxleakFix);
        if (!fix) continue;
        const status = makeStatus();
        const hint = [...slot.childNodes];
        slot.replaceChildren(...copyButtons(fix.edits, (text) => (status.textContent = text)), ...hint, status);
      }
      for (const image of el.querySelectorAll(".pic img")) livePicture(image, model.get("nodes"));
    };
    draw();
    model.on("change:html", draw);
    const deafen = listenToKeys("[data-jaxleak]");
    return () => {
      model.off("change:html", draw);
      deafen();
    };
  },
};
