// HTML and SVG elements. Text is only inserted as text nodes, so no name or path can become markup.

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const select = (selector, inside = document) => inside.querySelector(selector);

// One child per key, built once and reused, so that focus and cursor survive new data.
function reuse(parent, keys, build) {
  const known = parent.reused ?? (parent.reused = new Map());
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
