// Pieces of pictures.
const SVG = "http://www.w3.org/2000/svg";
const shape = (name, attributes = {}, content = null) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (content !== null) element.textContent = content;
  return element;
};
const byId = (id) => document.getElementById(id);
// On an axis a power of ten says it shorter.
const tickText = (value) => (value >= 1e5 ? power(Math.round(Math.log10(value))) : shown(value));
const fixed = (number) => Number(number.toFixed(2));

// As many elements as there are things to draw: those that are there already stay, so that focus does.
const pool = (parent, make) => (things, update) => {
  while (parent.children.length > things.length) parent.lastChild.remove();
  while (parent.children.length < things.length) parent.append(make());
  things.forEach((thing, i) => update(parent.children[i], thing, i));
};

// A line with a head, as one path; too short for a head, it is a line.
const arrow = ([x, y], [u, v], head) => {
  const size = Math.hypot(u - x, v - y);
  if (!(size > 0.05)) return "";
  const part = Math.min(head, 0.6 * size) / size, [dx, dy] = [(u - x) * part, (v - y) * part];
  const line = `M${fixed(x)} ${fixed(y)}L${fixed(u)} ${fixed(v)}`;
  return `${line}M${fixed(u - dx - 0.5 * dy)} ${fixed(v - dy + 0.5 * dx)}L${fixed(u)} ${fixed(v)}L${fixed(u - dx + 0.5 * dy)} ${fixed(v - dy - 0.5 * dx)}`;
};

const scaleOf = ({ low, high, log }, from, to) => (value) => {
  const t = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return from + Math.min(1.04, Math.max(-0.04, Number.isNaN(t) ? 0 : t)) * (to - from);
};
const ticksOf = ({ low, high, log }) => {
  if (log) {
    const decades = Math.log10(high / low);
    const found = [];
    for (let exponent = Math.ceil(Math.log10(low) - 1e-9); exponent <= Math.log10(high) + 1e-9; exponent++) {
      for (const part of decades < 2 ? [1, 2, 5] : [1]) if (part * 10 ** exponent <= high * 1.001) found.push(part * 10 ** exponent);
    }
    return decades > 5 ? found.filter((_, i) => i % 2 === 0) : found;
  }
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 90].find((size) => (high - low) / size <= 6) ?? (high - low) / 4;
  return Array.from({ length: Math.floor((high - low) / step + 1e-9) + 1 }, (_, k) => Number((low + k * step).toFixed(6)));
};
