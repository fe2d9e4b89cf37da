// A Chromium that is told what to do by JSON lines on stdin, and answers each on stdout: for browser.py.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({ executablePath: process.argv[2], args: ["--no-sandbox", "--disable-gpu"] });
const problems = [];
let page = null;

const DO = {
  async open({ url, width, height, scheme, motion = "no-preference" }) {
    await page?.context().close();
    const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, reducedMotion: motion });
    page = await context.newPage();
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("pageerror", (error) => problems.push(String(error.stack ?? error)));
    page.on("request", (request) => {
      if (new URL(request.url()).origin !== new URL(url).origin) problems.push(`asks elsewhere: ${request.url()}`);
    });
    await page.goto(url);
  },
  reload: async () => void (await page.reload()),
  evaluate: ({ script }) => page.evaluate(script),
  // Not by waitForFunction, which evaluates within the page: its policy forbids that.
  async wait({ script, seconds }) {
    const end = Date.now() + 1000 * seconds;
    while (!(await page.evaluate(script))) {
      if (Date.now() > end) throw new Error(`not so within ${seconds} s`);
      await new Promise((wake) => setTimeout(wake, 100));
    }
  },
  press: ({ keys }) => page.keyboard.press(keys),
  hover: ({ selector }) => page.hover(selector),
  click: ({ selector }) => page.click(selector),
  resize: ({ width, height }) => page.setViewportSize({ width, height }),
  media: ({ scheme }) => page.emulateMedia({ colorScheme: scheme }),
  screenshot: async ({ path, whole }) => void (await page.screenshot({ path, fullPage: whole })),
  async accessibility() {
    await page.evaluate(axe);
    const { violations } = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })");
    return violations.map(({ id, impact, help, nodes }) => ({ id, impact, help, nodes: nodes.map((one) => `${one.html.slice(0, 200)} ${one.failureSummary}`) }));
  },
  problems: () => problems.splice(0),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { act, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await DO[act](given)) ?? null };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
