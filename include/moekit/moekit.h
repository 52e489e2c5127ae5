// SPDX-License-Identifier: Apache-2.0
#pragma once

// The whole public API.

#include "moekit/checkpoint.h"
#include "moekit/device.h"
#include "moekit/dtype.h"
#include "moekit/experts.h"
#include "moekit/format.h"
#include "moekit/kernels.h"
#include "moekit/plan.h"
#include "moekit/problem.h"
#include "moekit/recipe.h"
#include "moekit/routing.h"
#include "moekit/runtime.h"
#include "moekit/status.h"
#include "moekit/verify.h"
