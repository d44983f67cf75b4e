// The site works without this file. On a narrow screen the list of all pages begins closed, and "/" leads to the search.
const contents = document.querySelector("details.contents");
const narrow = matchMedia("(max-width: 59.99rem)");
const fold = () => { contents.open = !narrow.matches; };
narrow.addEventListener("change", fold);
fold();
const current = contents.querySelector(".current > a, a.current");
if (current) {
  current.setAttribute("aria-current", "page");
  if (!narrow.matches) contents.scrollTop = current.offsetTop - contents.clientHeight / 3;
}
const words = new URLSearchParams(location.search).get("q");
for (const input of document.querySelectorAll('input[name="q"]')) if (words) input.value = words;
// Each part that scrolls sideways can be reached by the keyboard, also after the window became narrower.
const scrolling = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const part of document.querySelectorAll(".prose table, .prose pre, .prose p:has(> img)")) scrolling.observe(part);
