"use strict";
// Keeps the page current: asks for it again, with the ETag of what it shows, and replaces what has changed.

(() => {
  const live = document.getElementById("live");
  if (!live) return;
  const OFTEN = 1500, USUAL = 5000, SELDOM = 30000;  // milliseconds between two questions
  const pause = document.getElementById("pause");
  const updated = document.getElementById("updated");
  let etag = "", timer = 0;

  function ages() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000));
      if (Number.isNaN(seconds)) continue;
      const units = [["d", 86400, 2], ["h", 3600, 3], ["m", 60, 2]];
      const unit = units.find(([, length, enough]) => seconds >= enough * length);
      time.title = time.dateTime;
      const age = unit ? Math.floor(seconds / unit[1]) + unit[0] : seconds + "s";
      time.textContent = "ago" in time.dataset ? age + " ago" : age;
    }
  }

  function show(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.getElementById("live");
    if (!fresh || fresh.innerHTML === live.innerHTML) return;
    const focused = live.contains(document.activeElement) && document.activeElement.getAttribute("href");
    live.replaceChildren(...document.importNode(fresh, true).childNodes);
    if (focused) live.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({preventScroll: true});
  }

  async function ask() {
    let next = USUAL;
    try {
      const answer = await fetch(location.href, {headers: etag ? {"If-None-Match": etag} : {}, cache: "no-store"});
      if (answer.status === 200) {
        etag = answer.headers.get("ETag") || "";
        show(await answer.text());
      }
      if (answer.ok || answer.status === 304) {
        updated.textContent = "current as of " + new Date().toLocaleTimeString();
      } else {
        updated.textContent = "Not up to date: the dashboard returned " + answer.status;
        next = SELDOM;
      }
    } catch {
      updated.textContent = "Not up to date: the dashboard does not answer";
      next = SELDOM;
    }
    ages();
    if (live.querySelector("[data-soon]")) next = Math.min(next, OFTEN);
    plan(next);
  }

  function plan(milliseconds) {
    clearTimeout(timer);
    if (pause.getAttribute("aria-pressed") === "false" && !document.hidden) timer = setTimeout(ask, milliseconds);
  }

  pause.addEventListener("click", () => {
    const pressed = pause.getAttribute("aria-pressed") === "false";
    pause.setAttribute("aria-pressed", String(pressed));
    if (pressed) updated.textContent = "paused";
    plan(0);
  });
  document.addEventListener("visibilitychange", () => plan(0));
  document.getElementById("updates").hidden = false;
  ages();
  plan(live.querySelector("[data-soon]") ? OFTEN : USUAL);
})();
