// Prints results as `cargo test` does, so that `cargo xtask test` counts and quotes them in the same way.

/** @typedef {import('@playwright/test/reporter').TestCase} TestCase */
/** @typedef {import('@playwright/test/reporter').TestResult} TestResult */

// What Playwright calls.
export default class Reporter {
  counts = { passed: 0, failed: 0, ignored: 0 };
  /** @type {{name: string, text: string}[]} */
  failures = [];

  /** @param {TestCase} test @param {TestResult} result */
  onTestEnd(test, result) {
    const name = `${test.location.file.split('/').at(-1)?.replace('.spec.js', '')} › ${test.title}`;
    const took = `${(result.duration / 1000).toFixed(1)} s`;
    if (result.status === 'skipped') {
      this.counts.ignored += 1;
      console.log(`test ${name} ... ignored`);
    } else if (result.status === test.expectedStatus) {
      this.counts.passed += 1;
      console.log(`test ${name} ... ok (${took})`);
    } else {
      this.counts.failed += 1;
      const errors = result.errors.map((error) => plain(error.stack ?? error.message ?? String(error.value)));
      const snippet = result.errors.map((error) => plain(error.snippet ?? ''));
      this.failures.push({ name, text: [`${result.status} after ${took}`, ...errors, ...snippet].join('\n') });
      console.log(`test ${name} ... FAILED (${took})`);
    }
  }

  /** An error outside of the tests: in the configuration, or while a file is read. @param {import('@playwright/test/reporter').TestError} error */
  onError(error) {
    this.failures.push({ name: 'before the tests', text: plain(error.stack ?? error.message ?? '') });
    this.counts.failed += 1;
  }

  onEnd() {
    if (this.failures.length) console.log('\nfailures:\n');
    for (const { name, text } of this.failures) console.log(`---- ${name} ----\n${text}\n`);
    if (this.failures.length) console.log(`failures:\n${this.failures.map(({ name }) => `    ${name}`).join('\n')}`);
    const { passed, failed, ignored } = this.counts;
    console.log(`\ntest result: ${failed ? 'FAILED' : 'ok'}. ${passed} passed; ${failed} failed; ${ignored} ignored`);
  }
}

/** Without colours. @param {string} text */
function plain(text) {
  // eslint-disable-next-line no-control-regex
  return text.replace(/\u001b\[[0-9;]*m/g, '');
}
