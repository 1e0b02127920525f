// Allure 3. From the repository's root, after a run (`generate` needs Node 20):
//   npx allure@3.18.0 generate --config reports/allurerc.mjs reports/out/allure-results
// Paths are relative to the folder that the command is started in.
const failed = (name, check, message) => ({
  name,
  matchers: [{ statuses: ["failed"], ...(check && { labels: { feature: check } }), ...(message && { message }) }],
  groupBy: [{ label: "suite" }],
});

const skipped = (name, message) => ({ name, matchers: [{ statuses: ["skipped"], message }], groupBy: [{ label: "suite" }] });

export default {
  name: "mtpgate",
  output: "reports/out/allure-report",
  historyPath: "reports/out/allure-history.jsonl",
  historyLimit: 90,
  plugins: {
    awesome: {
      // A cell is a suite, a check a feature: the tree reads matrix, cell, check.
      options: { reportName: "mtpgate", groupBy: ["parentSuite", "suite"], reportLanguage: "en" },
    },
  },
  // The first rule that matches takes a result.
  categories: {
    rules: [
      failed("Fixed: remove the waiver", null, /\bfixed: /),
      skipped("Known bad", /known bad: /),
      skipped("No baseline", /no baseline/),
      skipped("Unstable speed", /: unstable: /),
      skipped("Too little data to judge", /insufficient/),
      { name: "Void measurement", matchers: [{ statuses: ["failed", "broken"], message: /\bvoid\b/ }] },
      failed("Start-up: out of memory", "startup", /out of memory|not enough memory|oom_|kv_pool_small/i),
      failed("Start-up", "startup"),
      failed("Answers differ", "parity"),
      failed("Accept length", "acceptance"),
      failed("Slower than the baseline", "throughput"),
      failed("Serving", "serving"),
      { name: "Blocked by a failed start-up", matchers: [{ statuses: ["broken"], message: /Blocked/ }] },
      { name: "Infrastructure", matchers: [{ statuses: ["broken"] }] },
    ],
  },
};
