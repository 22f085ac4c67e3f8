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

// Times are in one unit, which the model chooses.
struct Step {
  u32 stream;
  u32 wait, give;                             // tokens; 0: none
  u32 flags;                                  // StepFlag
  u32 track;                                  // of asynchronous work of the stream; 0: none, 1 to 7
  u32 first, second, third;                   // resources; 0: none
  float own;                                  // time that the stream takes before the step
  float issue;                                // of it, on the resource that issues the stream's instructions
  float first_time, second_time, third_time;  // for which the step occupies the resources
  float latency;                              // from there until it takes effect
};
static_assert(sizeof(Step) == 56, "the steps are shared with Python");

struct Replayed {
  double end = 0;                // of the last effect
  std::vector<double> ends;      // of each stream; negative where it never ended
  std::vector<double> waited;    // by each stream at tokens
  std::vector<double> busy;      // of each resource
  std::vector<double> marks;     // last mark of each stream; negative: none
  std::vector<double> complete;  // time of each token; negative where it was never complete
};

// Clusters one after the other: `count` in all, of which `resident` run at once. Each has `streams`. Its own tokens are below
// `tokens`, which is the one of its end.
struct Turns {
  u32 count, resident;
  u32 streams, tokens;
  float pause;  // from the end of one cluster until the next begins in its place
};

// The steps of all clusters, from those of one.
std::vector<Step> steps_of_turns(const Step* cluster, std::size_t count, const Turns& turns);

// `starts`, `issues`: of each stream, its first time and the resource that issues its instructions.
Replayed replay(const std::vector<Step>& steps, const std::vector<double>& starts, const std::vector<u32>& issues, u32 tokens,
                u32 resources);

}  // namespace emulator
