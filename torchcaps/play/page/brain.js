// The backend: the server of this page, or ONNX models in the browser. Both offer the same two calls.

export async function openBrain() {
  const about = await answered(await reach("models.json"));
  if (about.runtime === "onnx") return (await import("./web.js")).openInBrowser(about);
  const ask = async (what, body) => answered(await reach(what, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  }));
  return {
    about,
    look: (network, pixels) => ask("look", { network: network.name, pixels: Array.from(pixels) }),
    draw: async (network, capsules) => (await ask("draw", { network: network.name, capsules })).pictures,
    sentence: (text) => ask("sentence", { text }),
  };
}

async function reach(...what) {
  try { return await fetch(...what); } catch { throw new Error("No answer from the server; is it still running?"); }
}

async function answered(response) {
  const body = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

// At most one request runs, and only the newest waits: fast drawing never queues up.
export function newestOnly(work, failed) {
  let busy = false, waiting = null;
  return async function next(...args) {
    if (busy) { waiting = args; return; }
    busy = true;
    try { await work(...args); failed(null); } catch (error) { failed(error); }
    busy = false;
    if (waiting) { const later = waiting; waiting = null; next(...later); }
  };
}
