// Requests to this server, and its stream of events. An error carries the sentences that the command line would print.
export class ApiError extends Error {
  constructor(status, { message, hint } = {}) {
    super(message || `The server answered ${status}.`);
    this.status = status;
    this.hint = hint || "";
  }
}

const answered = async (response) => {
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, content.error);
  return content;
};

const unreachable = () => {
  throw new ApiError(0, { message: "The server does not answer.", hint: "Start it again: swift ui" });
};

export const get = (path, { signal } = {}) =>
  fetch(`/api/${path}`, { signal }).catch((error) => (error.name === "AbortError" ? Promise.reject(error) : unreachable())).then(answered);

export const post = (path, content = {}, { signal } = {}) =>
  fetch(`/api/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(content),
    signal,
  }).catch((error) => (error.name === "AbortError" ? Promise.reject(error) : unreachable())).then(answered);

// Calls handlers[name](data) for each event; the browser comes back by itself after a break, with the last event's id.
export const listen = (path, handlers, connected = () => {}) => {
  const source = new EventSource(`/api/${path}`);
  source.addEventListener("open", () => connected(true));
  source.addEventListener("error", () => connected(false));
  for (const [name, handle] of Object.entries(handlers))
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  return () => source.close();
};
