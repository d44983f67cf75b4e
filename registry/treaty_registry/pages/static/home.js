// Keeps the numbers of the log new while the page is seen. Without this file they are those of the moment when the page was made.
const numbers = document.querySelectorAll("[data-live]");

async function renew() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/log", { cache: "no-cache", headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const log = await answer.json();
    for (const number of numbers) number.textContent = log[number.dataset.live].toLocaleString("en");
  } catch {
    // The registry is away: the old numbers stay.
  }
}

setInterval(renew, 10_000);
