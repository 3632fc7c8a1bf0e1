// Requests to this server, and its stream of events. Errors have the messages of the command line.
export class ApiError extends Error {
  constructor(status, { message, hint } = {}) {
    super(message || `The server returned status ${status}.`);
    this.status = status;
    this.hint = hint || "";
  }
}

const parsed = async (response) => {
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, content.error);
  return content;
};

const unreachable = () => {
  throw new ApiError(0, { message: "Cannot reach the server.", hint: "Restart it: swift ui" });
};

export const get = (path, { signal } = {}) =>
  fetch(`/api/${path}`, { signal }).catch((error) => (error.name === "AbortError" ? Promise.reject(error) : unreachable())).then(parsed);

export const post = (path, content = {}, { signal } = {}) =>
  fetch(`/api/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(content),
    signal,
  }).catch((error) => (error.name === "AbortError" ? Promise.reject(error) : unreachable())).then(parsed);

// Calls handlers[name](data) for each event; the browser reconnects by itself, with the id of the last event.
export const listen = (path, handlers, connected = () => {}) => {
  const source = new EventSource(`/api/${path}`);
  source.addEventListener("open", () => connected(true));
  source.addEventListener("error", () => connected(false));
  for (const [name, handle] of Object.entries(handlers))
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  return () => source.close();
};
