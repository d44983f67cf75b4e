// The search works without this file and without htmx, which asks for results while one types.
const form = document.getElementById("search");
const filters = form.querySelector("details");
if (matchMedia("(min-width: 60rem)").matches) filters.open = true;

// An address without the filters that were left alone.
form.addEventListener("htmx:configRequest", (event) => {
  const given = event.detail.parameters;
  for (const name of Object.keys(given)) if (given[name] === "") delete given[name];
});

// A filter that is half typed can be malformed. The results stay, and the fault is said.
form.addEventListener("htmx:responseError", (event) => {
  const page = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
  const detail = page.querySelector(".problem [dir]");
  document.getElementById("found").textContent = detail ? detail.textContent : "The registry did not answer.";
});
