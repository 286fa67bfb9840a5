/* Looks for cheaper plans within a budget of the peak, by simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983).

   Written from docs/benchmark.md and docs/benchmark/ alone, in a language of its own: nothing of remat is used. All
   numbers are whole, and come in by the standard input, apart by white space, in this order:

     limit, steps, seed                                                the budget, and how long to look
     values, nodes, uses of values, uses of nodes, turn
     for each value: save_cost recompute_cost needed cannot_save cannot_recompute node saved
     for each use of values: producer consumer
     for each node: bytes owner maker parent computed register call forward backward output gradient
     for each use of nodes: producer consumer fused

   "saved" is the plan to begin with, which must be legal. It prints the cost and the peak of the best plan that was
   found, and the positions of what it saves; with no steps, those of the first plan. Times are linear in the graph. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long long whole;
enum { CYCLES = 6 };            /* as often the search goes back to the best plan, and is warm again */
static const double WARM = .02; /* of the first cost: what a step may add in the beginning, by a factor of e; */
static const double HOT = .1;   /* the same in every second cycle */

static int values, nodes, value_uses, node_uses, turn;

static whole *save_cost, *recompute_cost;
static char *needed, *no_save, *no_recompute, *recomputed;
static int *node_of, *argument_from, *argument; /* those of v: argument[argument_from[v]], up to the next one's */

static whole *bytes;
static int *owner, *maker, *parent, *producer, *consumer, *read_from, *read, *fused_from, *fused_reader;
static char *computed, *in_register, *call, *forward, *backward, *output, *gradient, *fused, *is_value;

static char *is_saved, *kept, *again, *runs, *written;
static int *wanted, *order[2], *at[2], *place[2], *start, *end, *segment, *near, *until, *count;
static whole *change;

static void *room(int length, size_t size) {
  void *found = calloc((size_t)length + 4, size);
  if (!found) exit(3);
  return found;
}
#define ROOM(name, length) name = room(length, sizeof *name)

static whole number(void) {
  whole found;
  if (scanf("%lld", &found) != 1) {
    fprintf(stderr, "error: the numbers end too early\n");
    exit(2);
  }
  return found;
}

/* ---- the peak: the sections of the page, one after the other ---- */

static int key(int x) { return backward[x] || x >= turn ? x : wanted[x]; }

static void find_steps(int ran[2]) {
  for (int x = 0; x < nodes; x++) wanted[x] = gradient[x] ? nodes : nodes + 1;
  for (int e = 0; e < node_uses; e++)
    if (backward[consumer[e]] && consumer[e] < wanted[producer[e]]) wanted[producer[e]] = consumer[e];
  for (int x = nodes - 1; x >= 0; x--)
    if (is_value[x] && computed[x] && !is_saved[x] && wanted[x] <= nodes)
      for (int e = read_from[x]; e < read_from[x + 1]; e++) {
        int when = x >= turn ? x : wanted[x];
        if (when < wanted[read[e]]) wanted[read[e]] = when;
      }
  for (int x = 0; x < nodes; x++) {
    kept[x] = is_value[x] && is_saved[x] && wanted[x] <= nodes;
    again[x] = is_value[x] && !is_saved[x] && computed[x] && wanted[x] <= nodes;
    runs[x] = forward[x] || kept[x];
  }
  for (int x = nodes - 1; x >= 0; x--)
    if (runs[x] && is_value[x])
      for (int e = read_from[x]; e < read_from[x + 1]; e++) runs[read[e]] = 1;
  ran[0] = ran[1] = 0;
  memset(count, 0, sizeof *count * (nodes + 3));
  for (int x = 0; x < nodes; x++) {
    at[0][x] = at[1][x] = -1;
    if (runs[x] && computed[x]) order[0][at[0][x] = ran[0]++] = x;
    if (again[x] || backward[x]) count[key(x) + 1]++;
  }
  for (int x = 0; x <= nodes; x++) count[x + 1] += count[x];
  for (int x = 0; x < nodes; x++)
    if (again[x] || backward[x]) {
      int step = count[key(x)]++;
      order[1][step] = x;
      at[1][x] = ran[0] + step;
      ran[1]++;
    }
}

/* Storage x is what node x owns in the forward pass, x + nodes in the backward pass. */
static void find_places(void) {
  for (int x = 0; x < nodes; x++) {
    int follows = again[x] || (backward[x] && is_value[owner[x]]);
    place[1][x] = parent[x] >= 0 && follows ? place[1][parent[x]] : owner[x] + (kept[x] ? 0 : nodes);
  }
  memset(written, 0, 2 * nodes);
  for (int x = 0; x < nodes; x++) {
    if (owner[x] == x && !(in_register[x] && computed[x])) written[x] = written[x + nodes] = 1;
    if (output[x] || kept[x]) written[place[0][x]] = 1;
    if (gradient[x]) written[place[1][x]] = 1;
  }
  for (int pass = 0; pass < 2; pass++)
    for (int e = 0; e < node_uses; e++)
      if (!fused[e] && at[pass][consumer[e]] >= 0) written[place[pass][producer[e]]] = 1;
}

static void at_least(int *most, int other) {
  if (other > *most) *most = other;
}

static void find_lifetimes(int pass, int ran) {
  int calls = 0, *home = place[pass], *when = at[pass];
  memset(segment, -1, sizeof *segment * nodes);
  for (int step = 0; step < ran; step++) {
    int x = order[pass][step], made = when[maker[x]] >= 0 ? when[maker[x]] : when[x];
    if (made < start[home[x]]) start[home[x]] = made;
    at_least(&end[home[x]], when[x]);
    segment[x] = calls += call[x];
  }
  for (int x = 0; x < nodes; x++) {
    near[x] = written[home[x]] ? when[x] : -1;
    until[x] = when[x];
  }
  for (int step = ran - 1; step >= 0; step--) {
    int x = order[pass][step], far = until[x];
    if (!in_register[x]) continue;
    for (int e = fused_from[x]; e < fused_from[x + 1]; e++) {
      if (segment[fused_reader[e]] == segment[x]) at_least(&near[x], near[fused_reader[e]]);
      at_least(&far, until[fused_reader[e]]);
    }
    until[x] = written[home[x]] ? near[x] : far;
  }
  for (int e = 0; e < node_uses; e++)
    if (when[consumer[e]] >= 0) at_least(&end[home[producer[e]]], until[consumer[e]]);
}

static whole peak_of(const char *saved) {
  int ran[2];
  memset(is_saved, 0, nodes);
  for (int v = 0; v < values; v++) is_saved[node_of[v]] = saved[v];
  find_steps(ran);
  find_places();
  int steps = ran[0] + ran[1];
  for (int x = 0; x < 2 * nodes; x++) start[x] = steps, end[x] = -1;
  for (int pass = 0; pass < 2; pass++) find_lifetimes(pass, ran[pass]);
  for (int x = 0; x < nodes; x++) {
    if (output[x]) end[place[0][x]] = steps;
    if (gradient[x]) end[place[1][x]] = steps;
  }
  memset(change, 0, sizeof *change * (steps + 2));
  for (int x = 0; x < 2 * nodes; x++)
    if (written[x] && start[x] < steps && computed[x % nodes]) {
      change[start[x]] += bytes[x % nodes];
      change[end[x] + 1] -= bytes[x % nodes];
    }
  whole alive = 0, peak = 0;
  for (int step = 0; step < steps; step++)
    if ((alive += change[step]) > peak) peak = alive;
  return peak;
}

/* ---- the search ---- */

/* What a plan costs, and what it recomputes; -1 if something may not be. */
static whole cost_of(const char *saved) {
  whole cost = 0;
  memcpy(recomputed, needed, values);
  for (int v = values - 1; v >= 0; v--) {
    if (saved[v]) recomputed[v] = 0;
    if ((saved[v] && no_save[v]) || (recomputed[v] && no_recompute[v])) return -1;
    cost += saved[v] ? save_cost[v] : recomputed[v] ? recompute_cost[v] : 0;
    if (recomputed[v])
      for (int e = argument_from[v]; e < argument_from[v + 1]; e++) recomputed[argument[e]] = 1;
  }
  return cost;
}

static unsigned long long state;

static double chance(void) { /* xorshift (Marsaglia, 2003) */
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (double)(state >> 11) / 9007199254740992.;
}

static int any(const char *marked, const char *barred) {
  int found = -1, seen = 0;
  for (int v = 0; v < values; v++)
    if (marked[v] && !(barred && barred[v]) && chance() * ++seen < 1) found = v;
  return found;
}

/* Drops a saved value, or saves a recomputed one, or does one of both with any value; now and then the operands of the
   value take its part, or it takes theirs. */
static void change_one(char *saved) {
  double kind = chance();
  int v = kind < .35 ? any(saved, 0) : kind < .8 ? any(recomputed, no_save) : (int)(chance() * values);
  if (v < 0 || no_save[v]) return;
  int drops = saved[v];
  saved[v] = !drops;
  if (kind < .8 && chance() < .4)
    for (int e = argument_from[v]; e < argument_from[v + 1]; e++)
      if (!(drops ? no_save : no_recompute)[argument[e]]) saved[argument[e]] = (char)drops;
}

static whole anneal(char *best, whole limit, whole steps) {
  char *now = room(values, 1), *next = room(values, 1);
  whole least = cost_of(best), cost = least, length = steps / CYCLES + 1;
  double first = (double)least;
  for (whole step = 0; step < steps; step++) {
    if (step % length == 0) memcpy(now, best, values), cost = least;
    double warm = (step / length % 2 ? HOT : WARM) * first + 1;
    double left = 1 - (double)(step % length) / (double)length, heat = warm * left * left * left + .3;
    memcpy(next, now, values);
    cost_of(now);
    double many = chance();
    for (int turns = many < .6 ? 1 : many < .85 ? 2 : 3; turns; turns--) change_one(next);
    whole other = cost_of(next);
    if (other < 0 || (other > cost && chance() >= exp((double)(cost - other) / heat)) || peak_of(next) > limit) continue;
    char *old = now;
    now = next, next = old, cost = other;
    if (cost < least) memcpy(best, now, values), least = cost;
  }
  return least;
}

/* ---- reading ---- */

/* Lists of what is at the other end of each use, by one end: a counting sort. */
static void index_uses(int length, int uses, const int *by, const int *other, const char *which, int *from, int *list) {
  for (int e = 0; e < uses; e++)
    if (!which || which[e]) from[by[e] + 1]++;
  for (int x = 0; x < length; x++) from[x + 1] += from[x];
  int *next = room(length, sizeof *next);
  memcpy(next, from, sizeof *next * length);
  for (int e = 0; e < uses; e++)
    if (!which || which[e]) list[next[by[e]]++] = other[e];
  free(next);
}

static void make_room(void) {
  char **flags[] = {&computed, &in_register, &call, &forward, &backward, &output, &gradient,
                    &is_value, &is_saved,    &kept, &again,   &runs};
  int **columns[] = {&owner, &maker, &parent, &wanted,   &order[0], &order[1], &at[0],
                     &at[1], &near,  &until,  &place[1], &segment,  &read_from, &fused_from};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) *flags[i] = room(nodes, 1);
  for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) *columns[i] = room(nodes, sizeof(int));
  ROOM(save_cost, values), ROOM(recompute_cost, values), ROOM(node_of, values), ROOM(argument_from, values);
  ROOM(needed, values), ROOM(no_save, values), ROOM(no_recompute, values), ROOM(recomputed, values);
  ROOM(argument, value_uses), ROOM(bytes, nodes), ROOM(count, nodes), ROOM(written, 2 * nodes);
  ROOM(start, 2 * nodes), ROOM(end, 2 * nodes), ROOM(change, 2 * nodes);
  ROOM(producer, node_uses), ROOM(consumer, node_uses), ROOM(read, node_uses), ROOM(fused_reader, node_uses);
  ROOM(fused, node_uses);
  place[0] = owner;
}

int main(void) {
  whole limit = number(), steps = number();
  state = 88172645463325252ULL ^ ((unsigned long long)number() * 2654435761ULL);
  values = (int)number(), nodes = (int)number(), value_uses = (int)number(), node_uses = (int)number();
  turn = (int)number();
  make_room();
  char *saved = room(values, 1);
  for (int v = 0; v < values; v++) {
    save_cost[v] = number(), recompute_cost[v] = number(), needed[v] = (char)number();
    no_save[v] = number() != 0, no_recompute[v] = number() != 0, node_of[v] = (int)number(), saved[v] = (char)number();
    is_value[node_of[v]] = 1;
  }
  int *from = room(value_uses, sizeof *from), *to = room(value_uses, sizeof *to);
  for (int e = 0; e < value_uses; e++) from[e] = (int)number(), to[e] = (int)number();
  index_uses(values, value_uses, to, from, 0, argument_from, argument);
  for (int x = 0; x < nodes; x++) {
    bytes[x] = number(), owner[x] = (int)number(), maker[x] = (int)number(), parent[x] = (int)number();
    char *flags[] = {computed, in_register, call, forward, backward, output, gradient};
    for (int i = 0; i < 7; i++) flags[i][x] = (char)number();
  }
  for (int e = 0; e < node_uses; e++)
    producer[e] = (int)number(), consumer[e] = (int)number(), fused[e] = (char)number();
  index_uses(nodes, node_uses, consumer, producer, 0, read_from, read);
  index_uses(nodes, node_uses, producer, consumer, fused, fused_from, fused_reader);

  if (cost_of(saved) < 0) {
    fprintf(stderr, "error: the first plan saves, or recomputes, what it may not\n");
    return 2;
  }
  whole cost = anneal(saved, limit, steps);
  printf("%lld %lld", cost, peak_of(saved));
  for (int v = 0; v < values; v++)
    if (saved[v]) printf(" %d", v);
  printf("\n");
  return 0;
}
