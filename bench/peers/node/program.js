// What the programs here share: `prepare`, `enqueue COUNT` and `work`, as bench/peers/drain.py
// calls them. The database is in the PG* variables, the worker's settings in BENCH_SETTINGS.

export const settings = JSON.parse(process.env.BENCH_SETTINGS);

/** Runs the action that the command line asks for. */
export async function main(actions) {
  const [action, count] = process.argv.slice(2);
  await actions[action](Number(count));
}

/** Prints how long the call of a peer's bulk function takes. */
export async function timed(call) {
  const began = performance.now();
  await call();
  console.log((performance.now() - began) / 1000);
}

export function numbers(count) {
  return Array.from({ length: count }, (_, number) => number);
}
