// Processes of tests, and their ports.

import { spawn } from 'node:child_process';

// Below those that the system gives to clients, so that a server can be started again at its port.
const PORT_MIN = 10_000;
const PORTS_EACH = 1000;

let used = Math.floor(Math.random() * PORTS_EACH);

/** A port that no other worker of this run uses. Another program may have it. */
export function nextPort() {
  used = (used + 1) % PORTS_EACH;
  return PORT_MIN + PORTS_EACH * (Number(process.env.TEST_PARALLEL_INDEX ?? 0) % 20) + used;
}

/** Starts a process that ends with this one, even if this one is killed. @param {string} program @param {string[]} words @param {import('node:child_process').SpawnOptions} options */
export function start(program, words, options) {
  return spawn('setpriv', ['--pdeathsig', 'KILL', '--', program, ...words], options);
}
