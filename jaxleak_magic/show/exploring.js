// What a script adds for reading: a graph whose nodes tell what they are, and keys.

// An image only shows itself: its nodes can be reached when the drawing stands in the page. Its data is in the page.
const ALLOWED = ["svg", "g", "path", "polygon", "polyline", "ellipse", "rect", "text"];

const drawingOf = (image) => {
  const bytes = Uint8Array.from(atob(image.src.split(",")[1]), (c) => c.charCodeAt(0));
  const drawing = new DOMParser().parseFromString(new TextDecoder().decode(bytes), "image/svg+xml").documentElement;
  const strange = (e) => !ALLOWED.includes(e.localName) || [...e.attributes].some(({ name }) => /^on|href/i.test(name));
  return [drawing, ...drawing.querySelectorAll("*")].some(strange) ? null : document.importNode(drawing, true);
};

// `nodes` are [name, facts]; the first is of the node with the class n1. Gives the drawing and what puts the image back.
const livePicture = (image, nodes) => {
  const drawing = drawingOf(image);
  if (!drawing) return [image, () => {}];
  const told = make("p", "", { role: "status", class: "told" });
  nodes.forEach(([name, facts], i) => {
    const node = drawing.querySelector(`.n${i + 1}`);
    if (!node) return;
    setAll(node, { tabindex: 0, role: "button", "aria-label": `${name}: ${facts}` });
    node.addEventListener("click", () => told.replaceChildren(make("b", name), ` · ${facts}`));
  });
  setAll(drawing, { role: "group", "aria-label": image.alt, style: image.getAttribute("style") ?? "" });
  image.replaceWith(drawing);
  drawing.parentElement.after(told);
  const restore = () => {
    drawing.replaceWith(image);
    told.remove();
  };
  return [drawing, restore];
};

// Up and Down walk the list of leaks, Enter asks a node. Before the front end sees them, which has other uses for them.
const listenToKeys = (root) => {
  const onKey = (event) => {
    const on = (selector) => (event.target.closest?.(root) && !event.ctrlKey && !event.altKey && !event.metaKey ? event.target.closest(selector) : null);
    const node = on("g[role]");
    const leak = on(".leak > summary");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (node && [" ", "Enter"].includes(event.key)) node.dispatchEvent(new MouseEvent("click"));
    else if (leak && step) {
      const all = [...leak.closest(root).querySelectorAll(".leak > summary")];
      all[all.indexOf(leak) + step]?.focus();
    } else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  window.addEventListener("keydown", onKey, true);
  return () => window.removeEventListener("keydown", onKey, true);
};
