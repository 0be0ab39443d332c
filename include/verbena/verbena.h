#pragma once

// Includes the whole API.  Start with Loop and Device.

#include "verbena/cm.h"
#include "verbena/completions.h"
#include "verbena/device.h"
#include "verbena/fabric.h"
#include "verbena/ib_cm.h"
#include "verbena/loop.h"
#include "verbena/outcome.h"
#include "verbena/pool.h"
#include "verbena/queues.h"
#include "verbena/request.h"
#include "verbena/standard.h"
#include "verbena/task.h"
#include "verbena/window.h"
