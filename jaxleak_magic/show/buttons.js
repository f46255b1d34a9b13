// Buttons that a report gets where a script runs. exploring.js, and widget.js or bridge.js follow in the same module.

const setAll = (element, attributes) => Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));

const make = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  element.textContent = text;
  setAll(element, attributes);
  return element;
};

const makeButton = (label, onClick, className = "") => {
  const button = make("button", label, { type: "button", class: className });
  button.addEventListener("click", onClick);
  return button;
};

// The clipboard API is missing where the page came by plain HTTP from another machine.
const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.style.cssText = "position:fixed;opacity:0";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
};

// One button for each cell or file that a fix changes; `edits` are {title, new}.
const copyButtons = (edits, say) =>
  edits.map(({ title, new: text }) => {
    const label = edits.length > 1 ? `Copy ${title}` : "Copy";
    return makeButton(label, async () => say((await copyText(text)) ? "Copied the new text." : "Could not copy."));
  });

const makeStatus = () => make("span", "", { role: "status", class: "said" });
