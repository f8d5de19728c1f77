// Numbers as the library writes them: 10,900, 0.62, 1.24·10⁻⁴.
const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (exponent) => `10${[...String(exponent)].map((digit) => RAISED[digit]).join("")}`;
const formats = new Map(); // made once: making one takes longer than using it
const grouped = (value, digits) => {
  if (!formats.has(digits)) formats.set(digits, new Intl.NumberFormat("en-US", { maximumSignificantDigits: digits }));
  return formats.get(digits).format(value).replace("-", "−");
};
// A bound is rounded to its own side, 1 upwards and −1 downwards, so that what is said stays true.
const shown = (value, digits = 3, side = 0) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "—";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  let rounded = Number(value.toPrecision(digits));
  if ((rounded - value) * side < 0) rounded += side * 10 ** (Math.floor(Math.log10(Math.abs(value))) - digits + 1);
  const size = Math.abs(rounded);
  if (size >= 1e-3 && size < 1e7) return grouped(rounded, digits);
  const [mantissa, exponent] = rounded.toExponential(digits - 1).split("e");
  const front = String(Number(mantissa)).replace("-", "−");
  return front === "1" ? power(Number(exponent)) : `${front}·${power(Number(exponent))}`;
};
const plural = (n, thing) => `${shown(n, 7)} ${thing}${n === 1 ? "" : "s"}`;
