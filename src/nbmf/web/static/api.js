// Requests to the server. Every answer names its model, so that the page notices when the model is replaced.

const KEPT = "nbmf-token";
let asking = null; // one dialog for all refused requests
let known = null; // the model on the page

export class Fault extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export function showing(mark) {
  known = mark;
}

/** Send a GET request; undefined parameters are left out. */
export function get(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null);
  const query = new URLSearchParams(given);
  return ask(`api/${path}${given.length ? `?${query}` : ""}`, { signal });
}

/** Send a POST request. */
export function post(path, body, signal = undefined) {
  const headers = { "content-type": "application/json" };
  return ask(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function ask(url, options) {
  for (let attempt = 0; ; attempt += 1) {
    const token = sessionStorage.getItem(KEPT);
    const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
    let response;
    try {
      response = await fetch(url, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Fault(0, "The server is not responding. Is it still running?");
    }
    if (response.status === 401) {
      asking ??= askToken(Boolean(token)).finally(() => (asking = null));
      await asking;
      continue;
    }
    if (response.status === 503 && attempt < 20) {
      await new Promise((resolve) => setTimeout(resolve, 500));
      continue;
    }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Fault(response.status, answer.error ?? `The server answered ${response.status}.`);
    if (known !== null && answer.model && answer.model !== known) {
      known = answer.model;
      window.dispatchEvent(new CustomEvent("model-replaced"));
    }
    return answer;
  }
}

function askToken(wasWrong) {
  const dialog = document.getElementById("ask-token");
  document.getElementById("token-fault").textContent = wasWrong ? "Wrong token. Please try again." : "";
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEPT, document.getElementById("token").value.trim());
        resolve();
      },
      { once: true },
    );
  });
}
