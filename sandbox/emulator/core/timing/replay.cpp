#include "timing/replay.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace emulator {

namespace {

constexpr u32 kTracks = 8, kPhases = 8;
constexpr u32 kNone = ~0u;

struct Step {
  u32 wait = 0, give = 0, flags = 0, track = 0, phase = 0, first = 0, second = 0, third = 0;
  float own = 0, issue = 0, first_time = 0, second_time = 0, third_time = 0, latency = 0;
};

// The steps of a cluster by stream. Each stream that has any begins with one that waits for the cluster whose place it takes,
// and ends with one that tells the end.
class StreamSteps {
 public:
  StreamSteps(const StepColumns& from, const Turns& turns, u32 streams) : begins_(streams + 1) {
    std::vector<u32> counts(streams);
    for (std::size_t i = 0; i < from.count; ++i) ++counts[from.stream[i]];
    for (u32 stream = 0; stream < streams; ++stream)
      begins_[stream + 1] = begins_[stream] + (counts[stream] ? counts[stream] + 2 : 0);
    steps_.resize(begins_[streams]);
    std::vector<u32> ends(begins_.begin(), begins_.end() - 1);
    const u32 before = turns.tokens - turns.resident * (turns.tokens + 1);  // modulo 2^32: a token of an earlier cluster
    for (u32 stream = 0; stream < streams; ++stream)
      if (counts[stream]) steps_[ends[stream]++] = {.wait = before, .flags = kBlock, .latency = turns.pause};
    for (std::size_t i = 0; i < from.count; ++i) steps_[ends[from.stream[i]]++] = step(from, i);
    for (u32 stream = 0; stream < streams; ++stream)
      if (counts[stream]) steps_[ends[stream]] = {.give = turns.tokens, .flags = kOfTrack};
  }

  const Step* begin(u32 stream) const { return steps_.data() + begins_[stream]; }
  const Step* end(u32 stream) const { return begin(stream + 1); }

 private:
  static Step step(const StepColumns& from, std::size_t i) {
    return {from.wait[i],       from.give[i],        from.flags[i],      from.track[i],  from.phase[i],
            from.first[i],      from.second[i],      from.third[i],      from.own[i],    from.issue[i],
            from.first_time[i], from.second_time[i], from.third_time[i], from.latency[i]};
  }

  std::vector<u32> begins_;
  std::vector<Step> steps_;
};

struct Stream {
  const Step *at, *end;
  u32 issue;                   // resource
  u32 first_token;             // of its cluster
  u32 next = kNone;            // that waits for the same token
  bool ready = false;          // own time of the present step has passed
  double now = 0, before = 0;  // before: effect of the step before
  double tracks[kTracks] = {};
};

struct Token {
  double time = 0;
  u32 missing = 0;
  u32 waiting = kNone;  // a stream, and those that its `next` leads to
};

// Streams by the time at which they go on; those of one time by their number.
class Queue {
 public:
  using Due = std::pair<double, u32>;

  bool empty() const { return heap_.empty(); }
  double next() const { return heap_.front().first; }

  void push(Due due) {
    heap_.push_back(due);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  u32 pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const u32 stream = heap_.back().second;
    heap_.pop_back();
    return stream;
  }

  // Takes the first out and puts another one in.
  u32 exchange(Due due) {
    const u32 stream = heap_.front().second;
    std::size_t at = 0;
    for (std::size_t child = 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (due < heap_[child]) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = due;
    return stream;
  }

 private:
  std::vector<Due> heap_;
};

class Replay {
 public:
  Replay(const StepColumns& cluster, const Turns& turns, const std::vector<u32>& issues, u32 resources)
      : turns_(turns), steps_(cluster, turns, static_cast<u32>(issues.size())), free_(resources) {
    result_.busy.assign(resources, 0);
    result_.phase_begins.assign(kPhases, -1);
    result_.phase_ends.assign(kPhases, -1);
    std::vector<Token> own(turns.tokens + 1);
    for (std::size_t i = 0; i < cluster.count; ++i)
      if (cluster.give[i]) ++own[cluster.give[i]].missing;
    const u32 streams = static_cast<u32>(issues.size());
    for (u32 stream = 0; stream < streams; ++stream) own[turns.tokens].missing += steps_.begin(stream) != steps_.end(stream);
    for (u32 turn = 0; turn < turns.count; ++turn) {
      tokens_.insert(tokens_.end(), own.begin(), own.end());
      for (u32 stream = 0; stream < streams; ++stream) start(turn, stream, issues[stream]);
    }
  }

  Replayed run() {
    while (!queue_.empty()) {
      u32 index = queue_.pop();
      while (advance(index)) index = queue_.exchange({streams_[index].now, index});
    }
    for (u32 turn = 1; turn <= turns_.count; ++turn) {
      const Token& end = tokens_[turn * (turns_.tokens + 1) - 1];
      result_.complete.push_back(end.missing ? -1 : end.time);
    }
    return std::move(result_);
  }

 private:
  void start(u32 turn, u32 stream, u32 issue) {
    const Step *begin = steps_.begin(stream), *end = steps_.end(stream);
    const bool used = begin != end;
    if (used && turn < turns_.resident) ++begin;  // waits for no other cluster
    if (used) queue_.push({0, static_cast<u32>(streams_.size())});
    streams_.push_back({.at = begin, .end = end, .issue = issue, .first_token = turn * (turns_.tokens + 1)});
    result_.ends.push_back(used ? -1 : 0);
    result_.marks.push_back(-1);
  }

  // Runs a stream until it waits or ends, or until another is due: then true.
  bool advance(u32 index) {
    Stream& stream = streams_[index];
    for (; stream.at != stream.end; ++stream.at) {
      const Step& step = *stream.at;
      if (!stream.ready) {
        if (another_is_due(stream)) return true;
        pass_own_time(stream, index, step);
      }
      if (another_is_due(stream)) return true;  // in the order of time
      if (step.wait && !passed(stream, index, step)) return false;
      take(stream, step);
      stream.ready = false;
    }
    result_.ends[index] = stream.now;
    result_.end = std::max(result_.end, stream.now);
    return false;
  }

  bool another_is_due(const Stream& stream) const { return !queue_.empty() && queue_.next() < stream.now; }

  void pass_own_time(Stream& stream, u32 index, const Step& step) {
    stream.ready = true;
    double& issuing = free_[stream.issue];
    const double begin = std::max(stream.now, issuing);
    issuing = begin + step.issue;
    result_.busy[stream.issue] += step.issue;
    stream.now = begin + step.own;
    if (step.flags & kDrain) stream.now = std::max(stream.now, stream.tracks[1]);
    if (step.flags & kMark) result_.marks[index] = stream.now;
  }

  bool passed(Stream& stream, u32 index, const Step& step) {
    Token& token = tokens_[stream.first_token + step.wait];
    if (token.missing) {
      stream.next = std::exchange(token.waiting, index);
      return false;
    }
    stream.now = std::max(stream.now, token.time);
    return true;
  }

  void take(Stream& stream, const Step& step) {
    double effect = stream.now;
    if (step.flags & kTogether) {
      effect = stream.before;
    } else if (step.flags & kOfTrack) {
      effect = std::max(effect, stream.tracks[step.track]);
    } else {
      const double begin = step.first ? std::max(stream.now, free_[step.first]) : stream.now;
      if (step.first) effect = occupy(step.first, stream.now, step.first_time);
      if (step.second) effect = std::max(effect, occupy(step.second, stream.now, step.second_time));
      if (step.third) effect = std::max(effect, occupy(step.third, stream.now, step.third_time));
      effect += step.latency;
      if (step.flags & kHold) stream.now = std::max(stream.now, begin);
      if (step.phase) report(step.phase, begin, effect);
    }
    stream.before = effect;
    if (step.track) stream.tracks[step.track] = std::max(stream.tracks[step.track], effect);
    result_.end = std::max(result_.end, effect);
    if (step.flags & kBlock) stream.now = std::max(stream.now, effect);
    if (step.give) give(stream.first_token + step.give, effect);
  }

  void report(u32 phase, double begin, double effect) {
    double& first = result_.phase_begins[phase];
    if (first < 0 || begin < first) first = begin;
    result_.phase_ends[phase] = std::max(result_.phase_ends[phase], effect);
  }

  double occupy(u32 resource, double now, double time) {
    free_[resource] = std::max(free_[resource], now) + time;
    result_.busy[resource] += time;
    return free_[resource];
  }

  void give(u32 which, double effect) {
    Token& token = tokens_[which];
    token.time = std::max(token.time, effect);
    if (--token.missing) return;
    for (u32 index = std::exchange(token.waiting, kNone); index != kNone; index = streams_[index].next) {
      Stream& stream = streams_[index];
      stream.now = std::max(stream.now, token.time);
      queue_.push({stream.now, index});
    }
  }

  const Turns turns_;
  const StreamSteps steps_;
  std::vector<Stream> streams_;
  std::vector<Token> tokens_;
  std::vector<double> free_;  // when each resource has served what it was given
  Queue queue_;
  Replayed result_;
};

// Raises: std::invalid_argument.
void check(const StepColumns& cluster, const Turns& turns, const std::vector<u32>& issues, u32 resources) {
  bool holds = true;
  for (const u32 issue : issues) holds = holds && issue < resources;
  for (std::size_t i = 0; i < cluster.count; ++i) {
    holds = holds && cluster.stream[i] < issues.size() && cluster.wait[i] < turns.tokens && cluster.give[i] < turns.tokens;
    holds = holds && cluster.first[i] < resources && cluster.second[i] < resources && cluster.third[i] < resources;
    holds = holds && cluster.track[i] < kTracks && cluster.phase[i] < kPhases;
  }
  if (!holds) throw std::invalid_argument("a step names a stream, token, resource, track or phase that does not exist");
}

}  // namespace

Replayed replay(const StepColumns& cluster, const Turns& turns, const std::vector<u32>& issues, u32 resources) {
  check(cluster, turns, issues, resources);
  return Replay(cluster, turns, issues, resources).run();
}

}  // namespace emulator
