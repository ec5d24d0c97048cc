// What the theme leaves out for readers who use a keyboard or a screen reader: the level of the captions in the
// sidebar, code that can be scrolled with the arrow keys, and a heading of the page that searches.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll('p.caption[role="heading"]')) caption.setAttribute("aria-level", "2");
  for (const box of document.querySelectorAll("pre, div.table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
  }
  const results = document.getElementById("search-results");
  if (results && !document.querySelector("h1")) {
    const heading = document.createElement("h1");
    heading.textContent = "Search";
    results.before(heading);
  }
});
