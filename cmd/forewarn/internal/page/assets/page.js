// Keeps the page up to date: replaces the parts that changed on the server, and runs the countdowns. Without it, the page
// is complete but does not update.
(() => {
  'use strict';

  const live = document.getElementById('live');
  const silence = 15000; // ms; the server says something every 5 s
  let ahead = 0; // ms that the server's clock is ahead of this one
  let heard = 0; // when the server last said something, by this clock; 0 for never
  let source = null;
  let began = 0; // when the last attempt to connect began, by this clock
  let wait = 1000;
  let wasLive = null;

  // span is a duration in the two largest of its units, as the server writes it.
  function span(ms) {
    const s = Math.max(0, Math.round(ms / 1000));
    if (s < 60) return s + ' s';
    if (s < 3600) return Math.floor(s / 60) + ' min ' + (s % 60) + ' s';
    if (s < 86400) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
    return Math.floor(s / 86400) + ' d ' + Math.floor(s % 86400 / 3600) + ' h';
  }

  function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function count() {
    const now = Date.now() + ahead;
    for (const e of document.querySelectorAll('[data-until]')) {
      const left = Number(e.dataset.until) - now;
      write(e, left < 500 ? 'due now' : 'in ' + span(left));
    }
    for (const e of document.querySelectorAll('[data-since]')) {
      write(e, span(now - Number(e.dataset.since)) + ' ago');
    }
  }

  function clock(ms) {
    return new Date(ms).toISOString().slice(11, 19) + ' UTC';
  }

  // say tells whether the page is live; said once, so that a screen reader is not interrupted every second.
  function say(isLive) {
    if (wasLive === isLive) return;
    wasLive = isLive;
    document.body.classList.toggle('stale', !isLive);
    write(live, isLive ? 'Live: changes appear by themselves.' : heard === 0 ? 'Not live: forewarn does not answer. Trying again.' :
      'Not live: no word from forewarn since ' + clock(heard + ahead) + '. What you see is from then. Trying again.');
  }

  // replace puts a part in the place of the old one. What had the focus, and what was unfolded, stays so.
  function replace(part, html) {
    const focus = part.contains(document.activeElement) ? document.activeElement.id : '';
    const open = Array.from(part.querySelectorAll('details[open]'), (d) => d.id);
    part.innerHTML = html; // our own, escaped by the server
    for (const id of open) {
      const d = document.getElementById(id);
      if (d) d.open = true;
    }
    const again = focus && document.getElementById(focus);
    if (again) again.focus({ preventScroll: true });
  }

  function take(news) {
    if (news.build !== document.documentElement.dataset.build) {
      location.reload(); // another forewarn answers, with another page
      return;
    }
    heard = Date.now();
    ahead = news.now - heard;
    wait = 1000;
    for (const [id, html] of Object.entries(news.parts || {})) {
      const part = document.getElementById(id);
      if (part) replace(part, html);
    }
    if (document.title !== news.title) document.title = news.title;
    say(true);
    count();
  }

  function connect() {
    began = Date.now();
    source = new EventSource('/events' + location.search);
    source.onmessage = (m) => take(JSON.parse(m.data));
    source.onerror = lost;
  }

  function lost() {
    source.close();
    source = null;
    say(false);
    setTimeout(connect, wait * (0.5 + Math.random() / 2));
    wait = Math.min(wait * 2, 15000);
  }

  // unfold opens what a link leads into; not every browser does.
  function unfold() {
    const folded = document.getElementById(location.hash.slice(1))?.closest('details:not([open])');
    if (folded) {
      folded.open = true;
      document.getElementById(location.hash.slice(1)).scrollIntoView();
    }
  }

  window.addEventListener('hashchange', unfold);
  setInterval(() => {
    count();
    if (source && Date.now() - Math.max(heard, began) > silence) {
      lost();
    }
  }, 1000);
  connect();
})();
