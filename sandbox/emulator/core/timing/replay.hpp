// Replays steps of many streams in time: what waits for what, and what shares a resource. It knows no instruction; a model
// turns the rows of a trace into steps and says how long each takes.
#pragma once

#include <cstddef>
#include <vector>

#include "bits.hpp"

namespace emulator {

enum StepFlag : u32 {
  kHold = 1,       // the stream goes on when the first resource begins to serve the step
  kBlock = 2,      // the stream goes on when the step has taken effect
  kDrain = 4,      // the step begins when the stream's steps of track 1 have taken effect
  kOfTrack = 8,    // the token is given when all steps of the track have taken effect, and this one does nothing else
  kTogether = 16,  // the step takes effect with the stream's step before, and nothing else
  kMark = 32,      // the time at which the stream reaches the step is reported
};

// The steps of one cluster in order, a column for each field. Times are in one unit, which the model chooses.
struct StepColumns {
  std::size_t count;
  const u32* stream;
  const u32 *wait, *give;             // tokens; 0: none
  const u32* flags;                   // StepFlag
  const u32* track;                   // of asynchronous work of the stream; 0: none, 1 to 7
  const u32* phase;                   // whose first begin and last effect are reported; 0: none, 1 to 7
  const u32 *first, *second, *third;  // resources; 0: none
  const float *own, *issue;           // time that the stream takes before the step; of it, on the issuing resource
  const float *first_time, *second_time, *third_time;  // for which the step occupies the resources
  const float* latency;                                // from there until it takes effect
};

struct Replayed {
  double end = 0;                                // of the last effect
  std::vector<double> ends;                      // of each stream; negative where it never ended
  std::vector<double> busy;                      // of each resource
  std::vector<double> marks;                     // last mark of each stream; negative: none
  std::vector<double> complete;                  // end of each cluster; negative where one of its streams never ended
  std::vector<double> phase_begins, phase_ends;  // of each phase, of all clusters; negative: none
};

// Clusters one after the other: `count` in all, of which `resident` run at once. Their tokens are below `tokens`.
struct Turns {
  u32 count, resident;
  u32 tokens;
  float pause;  // from the end of one cluster until the next begins in its place
};

// `issues`: of each stream of a cluster, the resource that issues its instructions.
Replayed replay(const StepColumns& cluster, const Turns& turns, const std::vector<u32>& issues, u32 resources);

}  // namespace emulator
