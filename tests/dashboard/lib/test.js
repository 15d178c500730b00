// What every test has: a server of its own, and a browser that is watched. A violation of the content security policy, a request to
// another origin, an error in the console or an exception of the page fails the test, wherever it happens.

import AxeBuilder from '@axe-core/playwright';
import { test as base, expect } from '@playwright/test';

import { Server } from './server.js';

/** @typedef {import('@playwright/test').Page} Page */
/** @typedef {import('@playwright/test').BrowserContext} BrowserContext */

/** What went wrong in the browser, and what a test expects to go wrong. */
export class Watch {
  /** @type {string[]} */
  wrong = [];
  /** @type {RegExp[]} */
  expected = [];

  /** @param {RegExp} pattern */
  expect(pattern) {
    this.expected.push(pattern);
  }

  /** @param {string} text */
  saw(text) {
    this.wrong.push(text);
  }

  unexpected() {
    return this.wrong.filter((text) => !this.expected.some((pattern) => pattern.test(text)));
  }

  /** @param {BrowserContext} context @param {() => string} origin */
  async follow(context, origin) {
    await context.exposeBinding('reportViolation', (_, text) => this.saw(`CSP: ${text}`));
    await context.addInitScript(() => {
      addEventListener('securitypolicyviolation', (event) => {
        // @ts-expect-error: the test has put it there
        globalThis.reportViolation(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
      }, true);
    });
    context.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith('data:') && new URL(url).origin !== origin()) this.saw(`request to another origin: ${url}`);
    });
    context.on('console', (message) => {
      if (message.type() === 'error' || message.type() === 'warning') this.saw(`console: ${message.text()} (${message.location().url})`);
    });
    context.on('weberror', (error) => this.saw(`exception: ${error.error().stack ?? error.error()}`));
  }
}

/**
 * @typedef {object} Fixtures
 * @property {import('./server.js').Settings} settings
 * @property {Server} server
 * @property {Watch} watch
 * @property {Page} operator a page, logged in as an operator
 */

/** @type {import('@playwright/test').TestType<import('@playwright/test').PlaywrightTestArgs & import('@playwright/test').PlaywrightTestOptions & Fixtures, import('@playwright/test').PlaywrightWorkerArgs & import('@playwright/test').PlaywrightWorkerOptions>} */
export const test = base.extend({
  settings: [{}, { option: true }],

  server: async ({ settings }, use) => {
    const server = await Server.start(settings);
    await use(server);
    await server.end();
  },

  watch: async ({ context, server }, use) => {
    const watch = new Watch();
    await watch.follow(context, () => server.url);
    // Before the log-in the server says 401, and the browser writes that to its console.
    watch.expect(/console: Failed to load resource: .* status of 401 /);
    await use(watch);
    expect(watch.unexpected(), 'what went wrong in the browser').toEqual([]);
  },

  operator: async ({ page, server, watch }, use) => {
    void watch;
    await logIn(page, server, server.tokens.operator);
    await use(page);
  },
});

/** Opens the page and logs in. @param {Page} page @param {Server} server @param {string} token @param {string} [hash] */
export async function logIn(page, server, token, hash = '') {
  await page.goto(`${server.url}/${hash}`);
  await page.locator('#login-token').fill(token);
  await page.locator('#login-submit').click();
  await expect(page.locator('#header nav')).toBeVisible();
  await expect(page.locator('#login-token')).toHaveCount(0);
}

/** The row of a stuck resource on the first page. @param {Page} page @param {string} key */
export function stuckRow(page, key) {
  return page.locator(`[data-test=stuck-row][data-key="${key}"]`);
}

/** Opens the page of one resource. @param {Page} page @param {string} name */
export async function openResource(page, name) {
  await page.evaluate((to) => (location.hash = to), `#/resource?${new URLSearchParams({ name })}`);
  await expect(page.locator('main h1')).toHaveText(name);
}

/** The numbers of the newest answers of the page are at hand: it is not at its beginning. @param {Page} page */
export async function isLive(page) {
  await expect(page.locator('#freshness')).toHaveAttribute('data-state', 'live');
}

/** Records each text that an element of the page shows from now on. @param {Page} page @param {string} selector @returns {Promise<() => Promise<string[]>>} */
export async function recorded(page, selector) {
  const shown = await page.evaluateHandle((wanted) => {
    /** @type {string[]} */
    const texts = [];
    const look = () => {
      const text = document.querySelector(wanted)?.textContent?.trim();
      if (text !== undefined && texts.at(-1) !== text) texts.push(text);
    };
    look();
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
    return texts;
  }, selector);
  return () => shown.jsonValue();
}

/** A phone, a tablet, a laptop. */
export const WIDTHS = [360, 768, 1280];

/** Fails with what a screen reader would not understand. @param {Page} page @param {string} where */
export async function isAccessible(page, where) {
  const { violations } = await new AxeBuilder({ page }).setLegacyMode(true).analyze();
  const said = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).join('; ')}`);
  expect(said, where).toEqual([]);
}

/** Fails if something makes the page wider than the window. @param {Page} page @param {string} where */
export async function fits(page, where) {
  const [width, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  expect(width, `the width of ${where}`).toBeLessThanOrEqual(room);
}

export { expect };
