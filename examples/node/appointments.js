// An office and its customers: node appointments.js office PORT FOLDER URI, or node appointments.js customer URL FOLDER URI.
import { OperationError, Protocol } from "./protocol.js";
import { connect, listen } from "./session.js";

const slots = new Map(["09:00", "09:30", "10:00"].map((time) => [`2030-05-02T${time}`, null]));
const bookings = new Map();
const office = {
  async *find({ day }) {
    const starts = [...slots].filter(([start]) => start.startsWith(day));
    if (!starts.length) throw new OperationError(404, "The office has no such day in its calendar.");
    for (const [start, booking] of starts) if (booking === null) yield { start, minutes: 30 };
  },
  book({ start, name }) {
    if (!slots.has(start)) throw new OperationError(404, "The office has no such slot.");
    if (slots.get(start) !== null) throw new OperationError(409, "The slot is taken.");
    const number = `B${bookings.size + 1}`;
    bookings.set(number, start);
    slots.set(start, name);
    return number;
  },
  cancel({ booking }) {
    if (!bookings.has(booking)) throw new OperationError(404, "There is no such booking.");
    slots.set(bookings.get(booking), null);
    return null;
  },
};

const [role, place, folder, uri] = process.argv.slice(2);
const protocol = new Protocol(uri, folder);
if (role === "office") {
  const server = listen(Number(place), "did:wba:office.example", protocol, "office", office);
  server.on("listening", () => console.log(server.address().port));
  // It ends with the program that started it.
  process.stdin.on("end", () => process.exit()).resume();
} else {
  const known = new Set();
  for (const name of ["Ada", "Grace"]) {
    const session = await connect(place, "did:wba:customer.example", protocol, "customer", { known });
    const starts = [];
    for await (const slot of session.stream("find", { day: "2030-05-02" })) starts.push(slot.start);
    const booking = await session.call("book", { start: starts[0], name });
    const again = await session.call("book", { start: starts[0], name }).catch((error) => error.code);
    console.log(JSON.stringify({ starts, booking, again }));
    session.close();
  }
}
