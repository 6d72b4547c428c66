// Tables that scroll can be reached by the keyboard.
document$.subscribe(() => setTimeout(() => document.querySelectorAll(".md-typeset__scrollwrap").forEach((e) => { e.tabIndex = 0 })))
