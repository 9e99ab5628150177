// A watched page polls its server every two seconds and replaces only what has changed.

const STATES = { waiting: "Waiting for a run", running: "Training", ended: "Ended", stopped: "Stopped", gone: "No answer from the server; retrying" };

function live() {
  const status = select("#status");
  status.hidden = false;
  const show = (state) => {
    // A run that hangs leaves no message; that nothing has changed for minutes is the only sign.
    const quiet = Math.floor((Date.now() - page.updated) / 60000);
    const text = STATES[state] + (state === "running" && quiet ? `; nothing new for ${quiet} min` : "");
    if (status.textContent === text) return;
    status.dataset.state = state;
    status.textContent = text;
  };
  const poll = async () => {
    try {
      const answer = await fetch("summary.json", {
        cache: "no-store",
        headers: { "If-None-Match": `"${page.version}"` },
        signal: AbortSignal.timeout(20000),
      });
      if (answer.status === 200) update(await answer.json());
      else if (answer.status !== 304) throw new Error(`status ${answer.status}`);
      show(page.state);
    } catch {
      show("gone");
    }
    setTimeout(poll, 2000);
  };
  page.updated = Date.now();
  show(page.state);
  setTimeout(poll, 2000);
}

function update(fresh) {
  Object.assign(page, { version: fresh.version, state: fresh.state, data: fresh.data, updated: Date.now() });
  if (document.title !== fresh.title) select("#title").textContent = document.title = fresh.title;
  for (const [name, text] of Object.entries(fresh.parts)) replacePart(select(`[data-part="${name}"]`), text);
  controls();
  drawAll();
}

// The server has escaped the HTML. Open details, focus and scroll positions are kept.
function replacePart(part, text) {
  if (part.known === text) return;
  part.known = text;
  const open = [...part.querySelectorAll("details[open]")].map((details) => details.id);
  const scrolled = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  const focused = part.contains(document.activeElement) ? [...part.querySelectorAll("[tabindex], summary, button")].indexOf(document.activeElement) : -1;
  part.innerHTML = text;
  for (const details of part.querySelectorAll("details")) details.open = open.includes(details.id);
  part.querySelectorAll(".scroll").forEach((box, index) => (box.scrollLeft = scrolled[index] ?? 0));
  if (focused >= 0) part.querySelectorAll("[tabindex], summary, button")[focused]?.focus({ preventScroll: true });
}
