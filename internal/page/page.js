"use strict";

const live = document.getElementById("live");
const link = document.getElementById("link");
const pause = document.getElementById("pause");
const parse = (html) => new DOMParser().parseFromString(html, "text/html");

// morph makes a node equal to another one. It touches only what differs, so focus, selection and scroll position stay.
function morph(from, to) {
  if (from.isEqualNode(to)) return;
  if (from.nodeType !== Node.ELEMENT_NODE) {
    from.data = to.data;
    return;
  }
  for (const {name, value} of to.attributes) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  for (const {name} of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
  const want = [...to.childNodes];
  want.forEach((next, i) => {
    const have = from.childNodes[i];
    if (!have) from.append(next);
    else if (have.nodeName !== next.nodeName) have.replaceWith(next);
    else morph(have, next);
  });
  while (from.childNodes.length > want.length) from.lastChild.remove();
}

let source;
function connect() {
  source = new EventSource("events");
  source.onopen = () => show("live");
  source.onmessage = (e) => {
    const next = live.cloneNode(false);
    next.append(...parse(e.data).body.childNodes);
    morph(live, next);
  };
  source.onerror = () => {
    show("disconnected");
    if (source.readyState !== EventSource.CLOSED) return;
    source = undefined; // refused: the browser does not try again by itself
    setTimeout(() => source || pause.ariaPressed === "true" || connect(), 5000);
  };
}

function show(state) {
  link.value = state;
  link.className = state;
}

pause.hidden = false;
pause.onclick = () => {
  const paused = pause.ariaPressed !== "true";
  pause.ariaPressed = String(paused);
  source?.close();
  if (paused) show("paused");
  else connect();
};
connect();

document.getElementById("form").onsubmit = async (e) => {
  e.preventDefault();
  const answer = document.getElementById("answer");
  try {
    const reply = await fetch("explain", {method: "POST", body: new URLSearchParams(new FormData(e.target))});
    answer.replaceWith(parse(await reply.text()).getElementById("answer") ?? failed(reply.statusText));
  } catch (error) {
    answer.replaceWith(failed(error.message));
  }
};

function failed(text) {
  const answer = document.createElement("div");
  answer.id = "answer";
  answer.textContent = text;
  return answer;
}
