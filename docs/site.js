// Tables and formulas that scroll can be reached by the keyboard.
document$.subscribe(() => setTimeout(() => document.querySelectorAll(".md-typeset__scrollwrap, math[display=block]").forEach((e) => { e.setAttribute("tabindex", 0) })))
// A hyphen within a word separates two words; the search would take what follows it for a word to leave out, and fail on none.
const post = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...more) {
  if (typeof message?.data === "string") message = { ...message, data: message.data.replace(/(\w)-+/g, "$1 ") }
  return post.call(this, message, ...more)
}
