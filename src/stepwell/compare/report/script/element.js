// Elements from plain values. Text only ever enters as text, so no name or path can become markup.

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const find = (selector, inside = document) => inside.querySelector(selector);

// One child per key, made once and kept, so that focus and reading position survive new data.
function keep(parent, keys, build) {
  const known = parent.kept ?? (parent.kept = new Map());
  for (const [key, item] of known) {
    if (!keys.includes(key)) {
      item.element.remove();
      known.delete(key);
    }
  }
  return keys.map((key) => {
    if (!known.has(key)) known.set(key, build(key));
    const item = known.get(key);
    if (!item.element.isConnected) parent.append(item.element);
    return item;
  });
}
