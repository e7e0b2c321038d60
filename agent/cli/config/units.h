// Durations and sizes, as options have them: the one grammar is the domain's.
#pragma once

#include "domain/units.h"
