throw new Error("it broke");
