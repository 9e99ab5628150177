// A watched page asks its own server every two seconds and changes only what is new.

const STATES = { waiting: "Waiting for a run", running: "Training", ended: "Ended", gone: "The server is gone; trying again" };

function live() {
  const status = find("#status");
  status.hidden = false;
  const show = (state) => {
    // A run that was killed says nothing of it: that nothing is new has to say it.
    const quiet = Math.floor((Date.now() - page.renewed) / 60000);
    const text = STATES[state] + (state === "running" && quiet ? `; nothing new for ${quiet} min` : "");
    if (status.textContent === text) return;
    status.dataset.state = state;
    status.textContent = text;
  };
  const ask = async () => {
    try {
      const answer = await fetch("summary.json", {
        cache: "no-store",
        headers: { "If-None-Match": `"${page.version}"` },
        signal: AbortSignal.timeout(20000),
      });
      if (answer.status === 200) renew(await answer.json());
      else if (answer.status !== 304) throw new Error(`status ${answer.status}`);
      show(page.state);
    } catch {
      show("gone");
    }
    setTimeout(ask, 2000);
  };
  page.renewed = Date.now();
  show(page.state);
  setTimeout(ask, 2000);
}

function renew(fresh) {
  Object.assign(page, { version: fresh.version, state: fresh.state, data: fresh.data, renewed: Date.now() });
  if (document.title !== fresh.title) find("#title").textContent = document.title = fresh.title;
  for (const [name, text] of Object.entries(fresh.parts)) replacePart(find(`[data-part="${name}"]`), text);
  controls();
  drawAll();
}

// The server has escaped what is in a part. What the reader opened, focused or scrolled stays so.
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
