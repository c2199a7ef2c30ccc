// Opens pages in Chromium at each width, light and dark, has axe look at them, and keeps a picture of each.
//
//   NODE_PATH=... node pages.mjs CHROMIUM PICTURES NAME=URL...
//
// Prints a line for each page and look, and each finding of axe with the element. Ends with 1 if there is one.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(process.cwd() + "/");
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [chromium, pictures, ...pages] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-gpu"] });
let findings = 0;
for (const one of pages) {
    const at = one.indexOf("=");
    const name = one.slice(0, at);
    for (const scheme of ["light", "dark"]) {
        for (const [look, width, height] of [["wide", 1280, 1400], ["phone", 390, 844]]) {
            const page = await browser.newPage();
            await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
            await page.setViewport({ width, height });
            await page.goto(one.slice(at + 1), { waitUntil: "load", timeout: 120_000 });
            await page.screenshot({ path: `${pictures}/${name}-${look}-${scheme}.png` });
            await page.evaluate(axe);
            const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
            console.log(`${name}, ${look}, ${scheme}: ${violations.length} findings`);
            for (const { id, help, nodes } of violations) {
                console.log(`  ${id}: ${help}, at ${nodes.length} places, first ${nodes[0].html.slice(0, 200)}`);
                console.log(`    ${(nodes[0].failureSummary ?? "").replaceAll("\n", " ")}`);
            }
            findings += violations.length;
            await page.close();
        }
    }
}
await browser.close();
process.exit(findings ? 1 : 0);
