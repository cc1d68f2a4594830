// Makes an open page live. Every page works without it.
"use strict";
(() => {
  const second = 1000;

  // The rules are those of the server's own times.
  const span = (ms) => {
    const s = Math.floor(ms / second);
    if (s < 1) return "";
    if (s < 120) return s + " s";
    if (s < 7200) return Math.floor(s / 60) + " min";
    if (s < 172800) return Math.floor(s / 3600) + " h";
    return Math.floor(s / 86400) + " days";
  };
  const ago = (at) => {
    const d = Date.now() - at;
    const text = span(Math.abs(d));
    if (text === "") return "now";
    return d < 0 ? "in " + text : text + " ago";
  };
  const tick = () => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const text = ago(Date.parse(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  };
  setInterval(tick, second);

  // On a narrow screen the navigation scrolls, and may hide where the reader is.
  const nav = document.querySelector("header nav ul");
  const current = nav?.querySelector("[aria-current]");
  if (current) nav.scrollLeft = current.offsetLeft - (nav.clientWidth - current.offsetWidth) / 2;

  const part = document.getElementById("live");
  const state = document.getElementById("live-state");
  const address = document.body.dataset.live;
  if (!address || !part || !state) return;

  const say = (kind, text) => {
    state.className = "live-state " + kind;
    if (state.textContent !== text) state.textContent = text;
  };

  // What a reader opened or stands on stays so.
  const replace = (html) => {
    const open = [...part.querySelectorAll("details[id][open]")].map((d) => d.id);
    const held = part.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...part.querySelectorAll(".table-box")].map((box) => box.scrollLeft);
    part.innerHTML = html;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    [...part.querySelectorAll(".table-box")].forEach((box, i) => { box.scrollLeft = scrolled[i] ?? 0; });
    if (held) {
      const same = held.id ? document.getElementById(held.id)
        : [...part.querySelectorAll("a[href]")].find((a) => a.getAttribute("href") === held.getAttribute("href"));
      same?.focus({ preventScroll: true });
    }
    tick();
  };

  // A part that changed under a pressed pointer would swallow the click.
  let pressed = false;
  let waiting = null;
  const show = (html) => {
    if (pressed) waiting = html;
    else replace(html);
  };
  const release = () => setTimeout(() => {
    pressed = false;
    if (waiting !== null) replace(waiting);
    waiting = null;
  });
  part.addEventListener("pointerdown", () => { pressed = true; });
  addEventListener("pointerup", release);
  addEventListener("pointercancel", release);

  let source = null;
  let done = false;
  const close = () => {
    source?.close();
    source = null;
  };
  const connect = () => {
    if (source || done) return;
    source = new EventSource(address);
    source.addEventListener("part", (event) => {
      say("on", "live");
      show(event.data);
    });
    source.addEventListener("trouble", (event) => say("off", "not live: " + event.data));
    source.addEventListener("still", () => {
      done = true;
      close();
      say("", "");
    });
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) {
        say("off", "not live; reload for newer figures");
        source = null;
        return;
      }
      say("off", "not connected");
    });
  };
  // A page that nobody sees asks for nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else connect();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", () => { if (!document.hidden) connect(); });
})();
