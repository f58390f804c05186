"use strict";
// Keeps the page current: asks for it again, with the ETag of what it shows, and replaces what has changed.
// What is chosen in the form of filters is applied at once.

(() => {
  const live = document.getElementById("live");
  if (!live) return;
  const OFTEN = 500, USUAL = 5000, SELDOM = 30000;  // milliseconds between two questions
  const TYPING = 250;  // milliseconds without a key, after which a filter is applied
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
    const focused = live.contains(document.activeElement) && address(document.activeElement);
    const opened = new Map();
    for (const row of live.querySelectorAll("details[open]")) opened.set(row.dataset.node, row.lastElementChild);
    live.replaceChildren(...document.importNode(fresh, true).childNodes);
    for (const row of live.querySelectorAll("details")) {
      const content = opened.get(row.dataset.node);
      if (!content) continue;
      row.lastElementChild.replaceWith(content);
      row.open = true;
    }
    if (focused) live.querySelector(focused)?.focus({preventScroll: true});
  }

  // Returns a selector of what has the focus, to find it again in the fresh page.
  function address(element) {
    const row = element.closest("summary")?.parentElement;
    if (row) return `details[data-node="${CSS.escape(row.dataset.node)}"] > summary`;
    return element.getAttribute("href") && `a[href="${CSS.escape(element.getAttribute("href"))}"]`;
  }

  // Shows the cards of a row that is open, from the page of its node.
  async function fill(row) {
    try {
      const answer = await fetch(row.dataset.from, {cache: "no-cache"});
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const cards = page.querySelector("ul.cards");
      if (!cards || !row.open) return;
      const content = row.lastElementChild;
      const before = content.querySelector("ul.cards");
      if (before && before.innerHTML === cards.innerHTML) return;
      if (before) before.replaceWith(document.importNode(cards, true));
      else content.append(document.importNode(cards, true));
      ages();
    } catch {
      // the line below says that the dashboard does not answer
    }
  }

  function refill() {
    for (const row of live.querySelectorAll("details[open]")) fill(row);
  }

  const paused = () => pause.getAttribute("aria-pressed") === "true";

  // An answer that arrives after a click on «Pause updates» does not hide that they are paused.
  function say(text) {
    updated.textContent = paused() ? "paused" : text;
  }

  async function ask() {
    let next = USUAL;
    const address = location.href;
    try {
      const answer = await fetch(address, {headers: etag ? {"If-None-Match": etag} : {}, cache: "no-store"});
      const text = answer.status === 200 ? await answer.text() : "";
      if (answer.status === 401) return location.reload();  // the form to sign in
      if (address !== location.href) return;  // other filters were chosen meanwhile
      if (text) {
        etag = answer.headers.get("ETag") || "";
        show(text);
      }
      if (answer.ok || answer.status === 304) {
        say("current as of " + new Date().toLocaleTimeString());
      } else {
        say("Not up to date: the dashboard returned " + answer.status);
        next = SELDOM;
      }
    } catch {
      say("Not up to date: the dashboard does not answer");
      next = SELDOM;
    }
    ages();
    refill();
    if (live.querySelector("[data-soon]")) next = Math.min(next, OFTEN);
    plan(next);
  }

  function plan(milliseconds) {
    clearTimeout(timer);
    if (!paused() && !document.hidden) timer = setTimeout(ask, milliseconds);
  }

  const form = document.querySelector("form.filters");
  let typing = 0;

  function filter() {
    const query = new URLSearchParams([...new FormData(form)].filter(([, text]) => text));
    history.replaceState(null, "", form.getAttribute("action") + (query.toString() && "?" + query));
    query.set("format", "json");
    document.getElementById("json").href = location.pathname + "?" + query;
    etag = "";
    ask();
  }

  live.addEventListener("toggle", ({target}) => target.open && fill(target), true);
  form?.addEventListener("input", ({target}) => {
    clearTimeout(typing);
    if (target.name === "namespace") return;  // other links of the page have it, too
    typing = setTimeout(filter, target.tagName === "SELECT" ? 0 : TYPING);
  });
  form?.addEventListener("change", ({target}) => {
    if (target.name === "namespace") form.requestSubmit();
  });
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!paused()));
    say(updated.textContent);
    plan(0);
  });
  document.addEventListener("visibilitychange", () => plan(0));
  document.getElementById("updates").hidden = false;
  ages();
  plan(live.querySelector("[data-soon]") ? OFTEN : USUAL);
})();
