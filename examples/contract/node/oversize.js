require("fs").writeFileSync(process.env.MYCOJOBS_RESULT, JSON.stringify({ big: "x".repeat(100_000) }));
