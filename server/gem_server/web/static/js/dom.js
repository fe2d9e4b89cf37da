// Elements, in few words. Text always comes in as text: names come from the workers, so they may hold anything.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; a child is a node or a text. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Write a text where it is another one. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute, or take it away where there is no value. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Renew a list of terms: [term, text, what it means or none]. */
export function define(list, entries) {
  const key = entries.map(([term]) => term).join("\n");
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(
      ...entries.map(([term, , about]) =>
        make("div", {}, make("dt", {}, term), make("dd"), ...(about ? [make("dd", { class: "about" }, about)] : [])),
      ),
    );
  }
  entries.forEach(([, text], index) => say(list.children[index].children[1], text));
}
