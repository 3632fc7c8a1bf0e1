// Formats numbers and times, as in the terminal.
import { number } from "./charts.js";

export { number };

export const duration = (seconds) => {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  const two = (value) => String(value).padStart(2, "0");
  if (days) return `${days}d ${two(hours)}h`;
  if (hours) return `${hours}h ${two(minutes)}m`;
  return minutes ? `${minutes}m ${two(whole % 60)}s` : `${whole}s`;
};

export const ago = (time) => {
  const seconds = Math.max(0, Date.now() / 1000 - time);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)}s ago`;
  if (seconds < 86400) return `${duration(Math.floor(seconds / 60) * 60).replace(/ 00s$/, "")} ago`;
  return new Date(time * 1000).toISOString().slice(0, 10);
};

export const count = (value) => {
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]])
    if (value >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  return Math.round(value).toLocaleString("en");
};

export const known = (value) => typeof value === "number" && Number.isFinite(value);
export const figure = (value) => (known(value) ? number(value) : "–");
export const label = (name) => {
  const text = name.replaceAll("_", " ");
  return text.slice(0, 1).toUpperCase() + text.slice(1);
};
export const plain = (value) =>
  value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
