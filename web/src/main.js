import "preact";
