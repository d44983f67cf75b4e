// Find the sections of the documentation that answer a question. docs/site/search.py makes the index: for each word its sections,
// each with the weight of the word there. A section that has more words of the question stands before one that has fewer.
var rank = (index, words) => {
  const sums = new Map();
  for (const word of new Set(words)) {
    const found = Object.hasOwn(index.words, word) ? index.words[word] : beginning(index, word);
    for (let place = 0; place < found.length; place += 2) {
      const [sum, number] = sums.get(found[place]) ?? [0, 0];
      sums.set(found[place], [sum + found[place + 1], number + 1]);
    }
  }
  return [...sums]
    .map(([section, [sum, number]]) => [sum * number * number, section])
    .sort((one, other) => other[0] - one[0] || one[1] - other[1])
    .slice(0, 30)
    .map(([, section]) => index.sections[section]);
};
// A word that no section has may be the beginning of one that some have.
var beginning = (index, word) => {
  const longer = word.length < 3 ? undefined : Object.keys(index.words).find((other) => other.startsWith(word));
  return longer === undefined ? [] : index.words[longer];
};
var show = (index, question) => {
  const stemmer = new Stemmer();
  const words = splitQuery(question).map((word) => word.toLowerCase()).filter((word) => !stopwords.has(word));
  const hits = rank(index, words.map((word) => stemmer.stemWord(word)));
  const list = document.createElement("ul");
  list.className = "search";
  for (const [page, anchor, title, heading, text] of hits) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = anchor ? `${page}#${anchor}` : page;
    link.textContent = heading;
    item.append(link);
    if (heading !== title) item.append(` – ${title}`);
    const context = document.createElement("p");
    context.className = "context";
    context.textContent = text;
    item.append(context);
    list.append(item);
  }
  document.getElementById("search-progress").textContent = hits.length ? `The ${hits.length} best sections` : "No section has these words.";
  document.getElementById("search-results").replaceChildren(list);
};
if (typeof document !== "undefined") {
  const question = new URLSearchParams(location.search).get("q");
  if (question) show(searchIndex, question.slice(0, 200));
}
