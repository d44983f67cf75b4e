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
// A long table is a file beside the pages (docs/generate). It is shown with a field, of whose words each row that is shown has all. A
// value between backticks is code, and one that begins with "vectors/" a file of the site.
const shown = (text, isCode) => {
  if (!isCode) return text;
  const code = Object.assign(document.createElement("code"), { textContent: text });
  if (!text.startsWith("vectors/")) return code;
  const link = Object.assign(document.createElement("a"), { href: document.documentElement.dataset.content_root + text });
  link.append(code);
  return link;
};
const cell = (value) => {
  const part = document.createElement("td");
  if (Array.isArray(value)) for (const text of value) part.append(shown(text, true), document.createElement("br"));
  else String(value).split("`").forEach((text, place) => part.append(shown(text, place % 2 === 1)));
  return part;
};
const fill = async (place) => {
  const answer = await fetch(place.dataset.list);
  if (!answer.ok) return;
  const rows = await answer.json();
  const table = document.createElement("table");
  const heads = table.createTHead().insertRow();
  for (const name of Object.keys(rows[0])) heads.append(Object.assign(document.createElement("th"), { scope: "col", textContent: name }));
  const body = table.createTBody();
  for (const row of rows) body.insertRow().append(...Object.values(row).map(cell));
  const field = Object.assign(document.createElement("input"), { type: "search", placeholder: `Filter ${rows.length} rows`, maxLength: 200 });
  field.setAttribute("aria-label", "Filter the rows");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  if (rows.length > 12) place.prepend(field);
  place.lastElementChild.before(table);
  scrolling.observe(table);
};
for (const place of document.querySelectorAll("[data-list]")) fill(place);
