// Runs the tests in Debian's Chromium. `cargo xtask test dashboard` sets the variables; by hand: see CONTRIBUTING.md.

import { defineConfig } from '@playwright/test';

export default defineConfig({
  testDir: '.',
  globalSetup: './lib/schedules.js',
  outputDir: process.env.LEASEHOLD_TEST_OUTPUT ?? 'test-results',
  // Far longer than anything takes, so a test that gets here has failed.
  timeout: 90_000,
  expect: { timeout: 30_000 },
  fullyParallel: true,
  workers: 2,
  forbidOnly: true,
  reporter: [['./lib/reporter.js']],
  use: {
    browserName: 'chromium',
    viewport: { width: 1280, height: 900 },
    screenshot: 'only-on-failure',
    actionTimeout: 30_000,
    launchOptions: {
      executablePath: process.env.LEASEHOLD_CHROMIUM ?? '/usr/bin/chromium',
      args: [
        // The tests run as root in containers, where the sandbox of the browser cannot be made.
        '--no-sandbox',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-default-apps',
        '--disable-domain-reliability',
        '--disable-sync',
        '--no-first-run',
        '--no-pings',
        // Nothing of the browser leaves this machine, whatever the page asks for.
        '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1',
      ],
    },
  },
});
