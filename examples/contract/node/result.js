require("fs").writeFileSync(
  process.env.MYCOJOBS_RESULT,
  JSON.stringify({ text: "grüße & more", number: 42, list: [1, "two", null] })
);
